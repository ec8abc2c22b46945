"""Counter slots with generations."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from relevo.transfer.engine import GENERATIONS, SLOTS


class Slot(NamedTuple):
    """Names one use of a counter."""

    number: int
    generation: int


class SlotPool:
    """Slots come back only when nothing can count in them any more, and are reused first-in
    first-out: so an old generation is 256 × 4,096 hand-offs away, which is what lets eight bits
    of generation suffice."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._free = deque(Slot(number, 0) for number in range(slots))
        self.total = slots

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> Slot | None:
        return self._free.popleft() if self._free else None

    def give_back(self, slot: Slot) -> None:
        self._free.append(Slot(slot.number, (slot.generation + 1) % GENERATIONS))

"""Which hand-offs have landed: read by the engine loop itself, so that a request runs in the very
next step and no other thread has to wake up in between."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.messenger.slots import Slot
from relevo.transfer.engine import TransferEngine


@dataclass(frozen=True)
class Landing:
    """A counter that is complete, or broken because more parts came than were asked for
    (`overshot`). A complete one means that every page is there and nothing more will come."""

    handoff: int
    slot: Slot
    reached_ns: int
    overshot: bool


class Landings:
    """`expect` and `forget` are the control thread's, `poll` the engine loop's. A hand-off is
    expected before anyone is asked to write for it, so a count always finds its hand-off."""

    def __init__(self, transfer: TransferEngine) -> None:
        self._transfer = transfer
        self._expected: dict[Slot, int] = {}
        self.fd = transfer.counter_fd

    def expect(self, slot: Slot, handoff: int, parts: int) -> None:
        self._expected[slot] = handoff
        armed = self._transfer.arm(slot.number, slot.generation, parts)
        assert armed, f"{slot} was free but armed"

    def forget(self, slot: Slot) -> None:
        self._transfer.disarm(slot.number)
        self._expected.pop(slot, None)

    def poll(self) -> list[Landing]:
        landings: list[Landing] = []
        for event in self._transfer.poll_counters():
            slot = Slot(event.slot, event.generation)
            handoff = self._expected.get(slot)
            if handoff is not None:
                landings.append(Landing(handoff, slot, event.reached_ns, event.overshot))
        return landings

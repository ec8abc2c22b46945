"""Control messages that are lost, said twice or late, on purpose and by seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

LATEST_S = 1.0


@dataclass(frozen=True)
class ControlFaults:
    """Probabilities per message. A late one comes up to LATEST_S later, so that others overtake
    it."""

    seed: int = 0
    lose: float = 0.0
    repeat: float = 0.0
    late: float = 0.0


class UnreliableSends:
    """Takes sends and does them now, later, twice or never. One thread's."""

    def __init__(self, faults: ControlFaults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.counters = {"lost": 0, "repeated": 0, "late": 0}

    def send(self, call: Callable[[], object], now: float) -> None:
        if self._happens(self._faults.lose):
            self.counters["lost"] += 1
            return
        if self._happens(self._faults.repeat):
            self.counters["repeated"] += 1
            self._put_off(call, now)
        if self._happens(self._faults.late):
            self.counters["late"] += 1
            self._put_off(call, now)
        else:
            call()

    def send_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()

    def wait_s(self, now: float, longest: float) -> float:
        """How long nothing is due, at most `longest`."""
        return min(longest, max(0.0, self._later[0][0] - now)) if self._later else longest

    def _put_off(self, call: Callable[[], object], now: float) -> None:
        due = now + self._random.uniform(0, LATEST_S)
        heapq.heappush(self._later, (due, next(self._order), call))

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

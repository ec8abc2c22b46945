"""Hand-offs that have landed and that their request has not been given yet. No I/O.

    landed ──no checksums yet──► CHECKING ──they are equal──► HELD, or let go
    landed ──checksums equal──► HELD, or let go
    HELD ──released──► let go
    landed, CHECKING ──checksums differ, or none came in time, or the link was lost──► spoiled
    CHECKING, HELD ──cancelled by its request──► freed

A hand-off that has landed is complete: nothing can write to its pages any more, so that each of
these ends frees them or gives them away at once. Only used where arrivals are verified or held.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from relevo.messenger.checksums import differing_layers
from relevo.messenger.decode_table import Handoff, Send
from relevo.messenger.states import count_states

CHECK_DEADLINE_S = 10.0
ASK_AGAIN_S = 1.0


class State(enum.Enum):
    CHECKING = enum.auto()
    HELD = enum.auto()


@dataclass(slots=True)
class Arrival:
    """`arrived` and `sent`: checksums per layer (see checksums.py); `sent` is None until the
    prefill worker has told them. Times in s; `reached_ns`: when the last page landed."""

    handoff: Handoff
    reached_ns: int
    arrived: bytes
    sent: bytes | None
    deadline: float
    ask_at: float
    state: State = State.CHECKING

    @property
    def held(self) -> bool:
        return self.state is State.HELD


@dataclass(frozen=True)
class LetGo:
    """Its request may run."""

    arrival: Arrival


@dataclass(frozen=True)
class Hold:
    """It waits until it is released."""

    arrival: Arrival


@dataclass(frozen=True)
class Spoiled:
    """What arrived is not known to be what was sent: the request is prefilled again. `layers`
    differ; none where it could not be checked."""

    arrival: Arrival
    layers: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Freed:
    """Its request is gone."""

    arrival: Arrival


Action = LetGo | Hold | Spoiled | Freed | Send


@dataclass
class Arrivals:
    """`hold`: also those that are intact wait, until they are released one by one."""

    hold: bool
    _waiting: dict[int, Arrival] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def states(self) -> dict[str, int]:
        """How many are in each state."""
        return count_states(State, (a.state for a in self._waiting.values()))

    def landed(
        self, handoff: Handoff, reached_ns: int, arrived: bytes, sent: bytes | None, now: float
    ) -> list[Action]:
        arrival = Arrival(
            handoff, reached_ns, arrived, sent, now + CHECK_DEADLINE_S, now + ASK_AGAIN_S
        )
        self._waiting[handoff.id] = arrival
        return self._check(arrival)

    def told(self, id: int, sent: bytes) -> list[Action]:
        """The prefill worker's checksums."""
        arrival = self._waiting.get(id)
        if arrival is None or arrival.state is not State.CHECKING:
            return []
        arrival.sent = sent
        return self._check(arrival)

    def release(self, id: int) -> list[Action]:
        arrival = self._waiting.get(id)
        if arrival is None or arrival.state is not State.HELD:
            return []
        return [LetGo(self._waiting.pop(id))]

    def cancel(self, request: str) -> list[Action]:
        gone = [id for id, a in self._waiting.items() if a.handoff.request == request]
        return [Freed(self._waiting.pop(id)) for id in gone]

    def link_lost(self, link: int) -> list[Action]:
        """Held ones do not need it any more."""
        unchecked = [
            a
            for a in self._waiting.values()
            if a.handoff.link == link and a.state is State.CHECKING
        ]
        why = "the link was lost before its checksums were told"
        return [self._spoil(a, (), why) for a in unchecked]

    def tick(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for arrival in [a for a in self._waiting.values() if a.state is State.CHECKING]:
            if now >= arrival.deadline:
                actions.append(self._spoil(arrival, (), "its checksums were not told in time"))
            elif now >= arrival.ask_at:
                arrival.ask_at = now + ASK_AGAIN_S
                actions.append(Send(arrival.handoff.link, arrival.handoff.wanted))
        return actions

    def _check(self, arrival: Arrival) -> list[Action]:
        if arrival.sent is None:
            return []
        layers = differing_layers(arrival.sent, arrival.arrived)
        if layers:
            return [self._spoil(arrival, tuple(layers), "whose checksums differ")]
        if self.hold:
            arrival.state = State.HELD
            return [Hold(arrival)]
        del self._waiting[arrival.handoff.id]
        return [LetGo(arrival)]

    def _spoil(self, arrival: Arrival, layers: tuple[int, ...], reason: str) -> Spoiled:
        del self._waiting[arrival.handoff.id]
        return Spoiled(arrival, layers, reason)

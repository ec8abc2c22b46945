"""The decode side of every hand-off: states and legal moves. No I/O, no clock of its own.

    REQUESTED ──accepted──► ACCEPTED
    REQUESTED, ACCEPTED ──counter reached──► done (landed)
    REQUESTED ──rejected──► done (lost, freed)
    REQUESTED, ACCEPTED ──failed, which says that all has drained──► done (lost, freed)
    REQUESTED, ACCEPTED ──cancelled by its request──► CANCELLING
    REQUESTED, ACCEPTED ──deadline passed, or counted too much──► CANCELLING (lost)
    CANCELLING ──cancel acknowledged, or failed──► done (freed)
    any ──link lost, or cancel unanswered──► QUARANTINED (lost unless it was), link fenced
    QUARANTINED ──link closed──► done (freed)

A request or a cancel that gets no answer is said again: both are idempotent, and a link may lose
messages without being lost itself. An accepted request is said again too, but rarely: its failure
may have been told and not heard.

The rule behind it: pages and slot are freed only when nothing can still write to them. A timeout
is never an acknowledgement; it leads to a fence.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from relevo.messenger.slots import Slot
from relevo.messenger.states import count_states
from relevo.wire.messages import Cancel, Message, PrefillRequest

CANCEL_DEADLINE_S = 10.0
RETRY_S = 1.0  # doubled with every time that the same thing is said
ACCEPTED_RETRY_S = 10.0


class State(enum.Enum):
    REQUESTED = enum.auto()
    ACCEPTED = enum.auto()
    CANCELLING = enum.auto()
    QUARANTINED = enum.auto()


_LIVE = (State.REQUESTED, State.ACCEPTED)


@dataclass(slots=True)
class Handoff:
    """One hand-off as the decode side knows it. `wanted` is what was asked of the worker
    `prefill`; `sent` its checksums, once it has told them."""

    wanted: PrefillRequest
    prefill: str
    deadline: float
    repeat_at: float
    repeat_s: float = RETRY_S
    state: State = State.REQUESTED
    lost: bool = False
    sent: bytes | None = None

    @property
    def id(self) -> int:
        return self.wanted.handoff

    @property
    def request(self) -> str:
        return self.wanted.request

    @property
    def link(self) -> int:
        return self.wanted.link

    @property
    def slot(self) -> Slot:
        return Slot(self.wanted.slot, self.wanted.generation)


@dataclass(frozen=True)
class Send:
    """Say this to the prefill worker behind `link`."""

    link: int
    message: Message


@dataclass(frozen=True)
class Landed:
    """Complete: the slot is free again; the pages are the request's own."""

    handoff: Handoff


@dataclass(frozen=True)
class Lost:
    """Will not complete; not yet freed."""

    handoff: Handoff
    reason: str


@dataclass(frozen=True)
class Freed:
    """Nothing can write any more: slot and pages may be used again."""

    handoff: Handoff


@dataclass(frozen=True)
class Fence:
    """Cut the link off; `link_closed` must follow."""

    link: int
    reason: str


Action = Send | Landed | Lost | Freed | Fence


class DecodeTable:
    """All hand-offs that are not done. Methods take what happened and return what to do."""

    def __init__(self) -> None:
        self._handoffs: dict[int, Handoff] = {}
        self._by_slot: dict[Slot, int] = {}
        self.repeats = 0  # messages said again

    def __len__(self) -> int:
        return len(self._handoffs)

    @property
    def quarantined_pages(self) -> int:
        """Pages that no request waits for any more and that may still be written."""
        return sum(len(h.wanted.pages) for h in self._handoffs.values() if h.lost)

    @property
    def states(self) -> dict[str, int]:
        """How many hand-offs are in each state."""
        return count_states(State, (h.state for h in self._handoffs.values()))

    def request(
        self, message: PrefillRequest, prefill: str, now: float, deadline_s: float
    ) -> list[Action]:
        """`prefill`: the worker's name."""
        handoff = Handoff(message, prefill, now + deadline_s, now + RETRY_S)
        assert handoff.id not in self._handoffs
        assert handoff.slot not in self._by_slot
        self._handoffs[handoff.id] = handoff
        self._by_slot[handoff.slot] = handoff.id
        return [Send(message.link, message)]

    def accepted(self, id: int, now: float) -> bool:
        """Whether that is news."""
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is not State.REQUESTED:
            return False
        handoff.state = State.ACCEPTED
        handoff.repeat_s = ACCEPTED_RETRY_S
        handoff.repeat_at = now + ACCEPTED_RETRY_S
        return True

    def told(self, id: int, checksums: bytes) -> None:
        """What was sent. Says nothing about what has arrived."""
        handoff = self._handoffs.get(id)
        if handoff is not None:
            handoff.sent = checksums

    def rejected(self, id: int, reason: str) -> list[Action]:
        """Rejected means never opened, so that nothing was written."""
        return self._ended(id, reason)

    def failed(self, id: int, reason: str) -> list[Action]:
        """Sent only after everything posted has drained."""
        return self._ended(id, reason)

    def counted(self, slot: Slot, now: float, *, overshot: bool) -> list[Action]:
        handoff = self._handoffs.get(self._by_slot.get(slot, -1))
        if handoff is None or handoff.state not in _LIVE:
            return []
        if overshot:
            return self._give_up(handoff, "more pages were written than asked for", now)
        self._forget(handoff)
        return [Landed(handoff)]

    def cancel(self, request: str, now: float) -> list[Action]:
        """Its request is not wanted any more."""
        actions: list[Action] = []
        for handoff in list(self._handoffs.values()):
            if handoff.request == request and handoff.state in _LIVE:
                actions += self._cancelling(handoff, now)
        return actions

    def cancel_ack(self, id: int) -> list[Action]:
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is not State.CANCELLING:
            return []
        self._forget(handoff)
        return [Freed(handoff)]

    def link_lost(self, link: int, reason: str) -> list[Action]:
        actions: list[Action] = [Fence(link, reason)]
        for handoff in self._on(link):
            if handoff.state in _LIVE:
                handoff.lost = True
                actions.append(Lost(handoff, reason))
            handoff.state = State.QUARANTINED
        return actions

    def link_closed(self, link: int) -> list[Action]:
        actions: list[Action] = []
        for handoff in list(self._on(link)):
            self._forget(handoff)
            actions.append(Freed(handoff))
        return actions

    def tick(self, now: float) -> list[Action]:
        """Deadlines, and what is said again."""
        actions: list[Action] = []
        silent: set[int] = set()
        for handoff in list(self._handoffs.values()):
            if handoff.state is State.QUARANTINED:
                continue
            if now < handoff.deadline:
                actions += self._repeat(handoff, now)
            elif handoff.state is State.CANCELLING:
                silent.add(handoff.link)
            else:
                actions += self._give_up(handoff, "not complete by its deadline", now)
        for link in silent:
            actions += self.link_lost(link, "a cancel was not answered")
        return actions

    def _ended(self, id: int, reason: str) -> list[Action]:
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is State.QUARANTINED:
            return []
        self._forget(handoff)
        if handoff.state is State.CANCELLING:
            return [Freed(handoff)]
        handoff.lost = True
        return [Lost(handoff, reason), Freed(handoff)]

    def _give_up(self, handoff: Handoff, reason: str, now: float) -> list[Action]:
        handoff.lost = True
        return [Lost(handoff, reason), *self._cancelling(handoff, now)]

    def _repeat(self, handoff: Handoff, now: float) -> list[Action]:
        if now < handoff.repeat_at:
            return []
        handoff.repeat_s *= 2
        handoff.repeat_at = now + handoff.repeat_s
        self.repeats += 1
        cancelling = handoff.state is State.CANCELLING
        return [Send(handoff.link, Cancel(handoff.id) if cancelling else handoff.wanted)]

    def _cancelling(self, handoff: Handoff, now: float) -> list[Action]:
        handoff.state = State.CANCELLING
        handoff.deadline = now + CANCEL_DEADLINE_S
        handoff.repeat_s = RETRY_S
        handoff.repeat_at = now + RETRY_S
        return [Send(handoff.link, Cancel(handoff.id))]

    def _on(self, link: int) -> Iterator[Handoff]:
        return (h for h in self._handoffs.values() if h.link == link)

    def _forget(self, handoff: Handoff) -> None:
        del self._handoffs[handoff.id]
        del self._by_slot[handoff.slot]

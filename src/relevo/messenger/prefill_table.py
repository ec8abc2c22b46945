"""The prefill side of every hand-off: states and legal moves. No I/O.

    (unknown) ──request──► OPEN, or rejected
    OPEN ──all pushed──► done (finished)
    OPEN ──a write failed, all drained──► done (failed)
    OPEN ──cancel──► WITHDRAWN ──drained──► done (acknowledged)
    OPEN ──the host gave it up──► WITHDRAWN ──drained──► done (failed)
    OPEN, WITHDRAWN ──link lost──► CUT ──link closed──► done

A cancel for an unknown id is acknowledged and remembered, so that a request that it overtook is
refused. Done ids are remembered too: a repeated message is answered as the first one was.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass

from relevo.messenger.host import PrefillJob
from relevo.messenger.states import count_states
from relevo.wire.messages import (
    Accepted,
    CancelAck,
    Failed,
    Finished,
    Message,
    Rejected,
)

REMEMBERED = 16_384


class State(enum.Enum):
    OPEN = enum.auto()
    WITHDRAWN = enum.auto()
    CUT = enum.auto()


@dataclass(slots=True)
class Handoff:
    job: PrefillJob
    state: State = State.OPEN
    failure: str | None = None  # why the host gave it up; told once drained


@dataclass(frozen=True)
class Send:
    """Say this to the decode worker behind `link`."""

    link: int
    message: Message


@dataclass(frozen=True)
class Start:
    """Open it in the transfer engine and queue it at the host."""

    job: PrefillJob


@dataclass(frozen=True)
class Withdraw:
    """Stop at the host and withdraw in the transfer engine; `drained` must follow."""

    handoff: int


@dataclass(frozen=True)
class Stop:
    """Stop at the host: the writes have ended by themselves."""

    handoff: int


@dataclass(frozen=True)
class Release:
    """Nothing reads its pages any more."""

    handoff: int


Action = Send | Start | Withdraw | Stop | Release


class PrefillTable:
    """All hand-offs that are not done, and the answers to those that are."""

    def __init__(self) -> None:
        self._handoffs: dict[int, Handoff] = {}
        self._answers: OrderedDict[int, Message] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handoffs)

    @property
    def states(self) -> dict[str, int]:
        """How many hand-offs are in each state."""
        return count_states(State, (h.state for h in self._handoffs.values()))

    def open_job(self, id: int) -> PrefillJob | None:
        handoff = self._handoffs.get(id)
        return handoff.job if handoff is not None and handoff.state is State.OPEN else None

    def request(self, job: PrefillJob, refusal: str | None) -> list[Action]:
        """`refusal`: why the job cannot run here, if so."""
        if job.handoff in self._answers:
            return [Send(job.link, self._answers[job.handoff])]
        if job.handoff in self._handoffs:
            return [Send(job.link, Accepted(job.handoff))]
        if refusal is not None:
            answer = Rejected(job.handoff, refusal)
            self._remember(job.handoff, answer)
            return [Send(job.link, answer)]
        self._handoffs[job.handoff] = Handoff(job)
        return [Start(job), Send(job.link, Accepted(job.handoff))]

    def cancel(self, id: int, link: int) -> list[Action]:
        handoff = self._handoffs.get(id)
        if handoff is None:
            # Whatever it was, nothing of it is in flight, and now nothing ever will be.
            self._remember(id, CancelAck(id))
            return [Send(link, CancelAck(id))]
        handoff.failure = None  # an acknowledgement says all that the asker needs
        if handoff.state is not State.OPEN:
            return []
        handoff.state = State.WITHDRAWN
        return [Withdraw(id)]

    def abandon(self, id: int, reason: str) -> list[Action]:
        """The host cannot compute it."""
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is not State.OPEN:
            return []
        handoff.state = State.WITHDRAWN
        handoff.failure = reason
        return [Withdraw(id)]

    def pushed(self, id: int, finished: Finished) -> list[Action]:
        """Every write of the hand-off is complete."""
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is State.CUT:
            return []
        if handoff.state is State.WITHDRAWN:  # `drained` follows
            return []
        # Remembered without its timings, which are many.
        again = Finished(id, (), finished.checksums)
        return [Send(handoff.job.link, finished), Release(self._done(id, again))]

    def drained(self, id: int) -> list[Action]:
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is not State.WITHDRAWN:
            return []
        answer: Message = CancelAck(id)
        if handoff.failure is not None:
            answer = Failed(id, handoff.failure)
        return [Release(self._done(id, answer)), Send(handoff.job.link, answer)]

    def failed(self, id: int, reason: str) -> list[Action]:
        """A write failed, and all that was posted has drained."""
        handoff = self._handoffs.get(id)
        if handoff is None or handoff.state is State.CUT:
            return []
        answer: Message = Failed(id, reason)
        if handoff.state is State.WITHDRAWN and handoff.failure is None:
            answer = CancelAck(id)
        self._done(id, answer)
        return [Stop(id), Release(id), Send(handoff.job.link, answer)]

    def link_lost(self, link: int) -> list[Action]:
        actions: list[Action] = []
        for id, handoff in self._handoffs.items():
            if handoff.job.link == link and handoff.state is not State.CUT:
                handoff.state = State.CUT
                actions.append(Withdraw(id))
        return actions

    def link_closed(self, link: int) -> list[Action]:
        cut = [
            id
            for id, handoff in self._handoffs.items()
            if handoff.job.link == link and handoff.state is State.CUT
        ]
        return [Release(self._done(id, Rejected(id, "the link was lost"))) for id in cut]

    def _done(self, id: int, answer: Message) -> int:
        del self._handoffs[id]
        self._remember(id, answer)
        return id

    def _remember(self, id: int, answer: Message) -> None:
        self._answers[id] = answer
        self._answers.move_to_end(id)
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)

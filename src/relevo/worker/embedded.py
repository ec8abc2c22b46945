"""The embedded engine as a host: what the messenger and the router ask of it.

Methods of the first half are called on the control thread and only queue; those of the second
run on the engine loop's thread and own the engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from relevo.engine.engine import Engine, Generated
from relevo.engine.scheduler import Step
from relevo.engine.sequence import Phase, Sequence
from relevo.kv.hashes import pages_for
from relevo.messenger.host import HandoffWanted, PrefillJob
from relevo.messenger.landings import Landing, Landings
from relevo.transfer.engine import Push
from relevo.types import Detail, TimelineEvent, now_ns
from relevo.wire.messages import (
    Generate,
    Load,
    Message,
    Output,
    PrefillCandidate,
    PrefillDone,
    RequestFailed,
    Timeline,
)
from relevo.worker.inbox import Inbox
from relevo.worker.jobs import JobProgress

RequestHandoff = Callable[[HandoffWanted, tuple[PrefillCandidate, ...]], object]


@dataclass(slots=True)
class Reservation:
    """Pages that a hand-off may write. `at_risk` holds them once their request has gone on
    without them; until then they are the sequence's."""

    sequence: Sequence
    at_risk: list[int] | None = None


class EmbeddedHost:
    """Implements both sides of the messenger's port.

    `post(call, *arguments)` queues a call on the control thread; what else `connect` takes are
    such calls, and whether landings are `inspected` before they may be used. What the engine loop
    has to say is gathered and posted by `flush`, once per step: waking the control thread takes the
    core away, and that must not stand between a landing and its step.
    """

    def __init__(self, engine: Engine, worker: str, inbox: Inbox) -> None:
        self.engine = engine
        self.counters = {"local_prefills": 0, "handoffs_requested": 0, "preemptions": 0}
        self._worker = worker
        self._inbox = inbox
        self._requests: dict[str, tuple[Generate, Sequence]] = {}
        self._reserved: dict[int, Reservation] = {}  # by hand-off
        self._jobs: dict[int, JobProgress] = {}
        self._job_of: dict[Sequence, int] = {}
        self._outgoing: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._notes: dict[str, list[TimelineEvent]] = {}
        self._measure()

    def connect(
        self,
        *,
        post: Callable[..., object],
        to_router: Callable[[Message], object],
        request_handoff: RequestHandoff,
        cancel_handoff: Callable[[str], object],
        landings: Landings | None,
        report_landing: Callable[[Landing], object],
        inspected: bool,
        note_prefill: Callable[[int, TimelineEvent], object],
        abandon_prefill: Callable[[int, str], object],
    ) -> None:
        self._post_now = post
        self._to_router = to_router
        self._request_handoff = request_handoff
        self._cancel_handoff = cancel_handoff
        self._landings = landings
        self._report_landing = report_landing
        self._inspected = inspected
        if landings is not None:
            self._inbox.watch(landings.fd)
        self._note_prefill = note_prefill
        self._abandon_prefill = abandon_prefill

    # ---- control thread ----

    def generate(self, message: Generate) -> None:
        self._inbox.post(self._generate, message)

    def abort(self, request: str) -> None:
        self._inbox.post(self._abort, request)

    def abort_all(self, then: Callable[[], object]) -> None:
        """Drops every request, and calls `then` on the engine loop's thread."""
        self._inbox.post(self._abort_all, then)

    def refuses(self, job: PrefillJob) -> str | None:
        if len(job.tokens) > self.engine.context:
            return f"{len(job.tokens)} tokens, this worker holds {self.engine.context}"
        vocabulary = self.engine.model_config.vocabulary
        if max(job.tokens) >= vocabulary:
            return f"token {max(job.tokens)}, the vocabulary has {vocabulary}"
        return None

    def start(self, job: PrefillJob) -> None:
        self._inbox.post(self._start, job)

    def stop(self, handoff: int) -> None:
        self._inbox.post(self._stop, handoff)

    def release(self, handoff: int) -> None:
        self._inbox.post(self._release, handoff)

    def pages(self, handoff: int) -> list[int]:
        # They change no more once all are pushed, and leave the books only after `release`.
        return self._jobs[handoff].sequence.pages

    def intact(self, handoff: int, reached_ns: int) -> None:
        self._inbox.post(self._landed, handoff, reached_ns)

    def lost(self, request: str, handoff: int, reason: str) -> None:
        self._inbox.post(self._lost, handoff, reason)

    def freed(self, handoff: int) -> None:
        self._inbox.post(self._freed, handoff)

    # ---- engine loop ----

    def flush(self) -> None:
        """Posts what has been gathered."""
        for request, events in self._notes.items():
            self._post(self._to_router, Timeline(request, tuple(events)))
        self._notes.clear()
        if self._outgoing:
            self._post_now(_call_all, self._outgoing)
            self._outgoing = []

    def _post(self, call: Callable[..., object], *arguments: Any) -> None:
        self._outgoing.append((call, arguments))

    def poll_landings(self) -> None:
        """Makes the requests runnable whose pages are all there."""
        if self._landings is None:
            return
        for landing in self._landings.poll():
            if self._inspected:
                self._prefilled(landing.handoff)
            elif not landing.overshot:
                self._landed(landing.handoff, landing.reached_ns)
            self._post(self._report_landing, landing)

    def admit(self) -> None:
        """Gives waiting requests their pages and asks for the hand-offs that they need."""
        scheduler = self.engine.scheduler
        before = list(scheduler.waiting)
        awaiting = scheduler.admit()
        for sequence in before:
            if sequence.phase is Phase.RUNNING and sequence.id in self._requests:
                self._local(sequence)
        for sequence in awaiting:
            self._hand_off(sequence)

    def open_step(self, step: Step) -> list[Push]:
        """The pushes that go with a step, noted as begun."""
        begin = now_ns()
        pushes: list[Push] = []
        for chunk in step.chunks:
            detail: dict[str, Detail] = {"first": chunk.first, "last": chunk.last}
            detail["reused_pages"] = chunk.sequence.reused
            event = TimelineEvent("prefill-start", begin, self._worker, detail)
            self._note(chunk.sequence, event)
            pushes += self._push(chunk.sequence, chunk.last)
        for sequence in step.cached:
            detail = {"reused_pages": sequence.reused}
            self._note(sequence, TimelineEvent("prefill-cached", begin, self._worker, detail))
            pushes += self._push(sequence, len(sequence.tokens))
        for sequence in step.decodes:
            if sequence.generated == 0:
                self._note(sequence, TimelineEvent("first-step", begin, self._worker))
        return pushes

    def close_step(self, step: Step, generated: list[Generated]) -> None:
        """Sends what a committed step made and takes finished jobs out of the schedule."""
        end = now_ns()
        for chunk in step.chunks:
            if chunk.sequence.generates:
                self._note(chunk.sequence, TimelineEvent("prefill-end", end, self._worker))
        for sequence in (*(c.sequence for c in step.chunks), *step.cached):
            done = not sequence.generates and sequence.to_prefill == 0
            if done and sequence.phase is Phase.RUNNING:
                self.engine.scheduler.remove(sequence, keep_pages=True)
        for item in generated:
            self._output(item, end)
        self._measure()

    def fail_step(self, step: Step, reason: str) -> None:
        """The forward pass raised: its requests fail, the loop goes on."""
        for sequence in {*step.decodes, *(c.sequence for c in step.chunks), *step.cached}:
            if sequence in self._job_of:
                self._stop(self._job_of[sequence])
                self._post(self._abandon_prefill, self._job_of[sequence], reason)
                continue
            message, _ = self._requests.pop(sequence.id)
            self.engine.scheduler.remove(sequence)
            failure = RequestFailed(sequence.id, message.attempt, reason)
            self._post(self._to_router, failure)
        self._measure()

    def _generate(self, message: Generate) -> None:
        known = self._requests.get(message.request)
        if known is not None and known[0].attempt >= message.attempt:
            return  # a repeated dispatch
        self._abort(message.request)
        sequence = Sequence(
            message.request,
            list(message.tokens),
            message.sampling,
            remote=bool(message.candidates),
        )
        self._requests[message.request] = (message, sequence)
        self.engine.scheduler.add(sequence)
        self._note(sequence, TimelineEvent("queued-at-worker", now_ns(), self._worker))

    def _abort(self, request: str) -> None:
        entry = self._requests.pop(request, None)
        if entry is None:
            return
        _, sequence = entry
        if sequence.phase is Phase.AWAITING_KV:
            # An earlier hand-off of the same request may still be in quarantine.
            reservation = next(
                r for r in self._reserved.values() if r.sequence is sequence and r.at_risk is None
            )
            reservation.at_risk = self.engine.scheduler.part_from_pages(sequence)
            self.engine.scheduler.remove(sequence)
            self._post(self._cancel_handoff, request)
        else:
            self.engine.scheduler.remove(sequence)
        self._measure()

    def _abort_all(self, then: Callable[[], object]) -> None:
        for request in list(self._requests):
            self._abort(request)
        self.flush()
        then()

    def _hand_off(self, sequence: Sequence) -> None:
        message, _ = self._requests[sequence.id]
        handoff = secrets.randbits(63)
        page_tokens = self.engine.config.page_tokens
        last = pages_for(len(sequence.tokens) - 1, page_tokens)
        wanted = HandoffWanted(
            handoff=handoff,
            request=sequence.id,
            tokens=tuple(sequence.tokens[:-1]),
            first_page=sequence.reused,
            pages=tuple(sequence.pages[sequence.reused : last]),
            layers=self.engine.layout.layer_count,
        )
        self._reserved[handoff] = Reservation(sequence)
        self.counters["handoffs_requested"] += 1
        event = TimelineEvent(
            "pages-reserved",
            now_ns(),
            self._worker,
            {"reused_pages": sequence.reused, "wanted_pages": len(wanted.pages)},
        )
        self._note(sequence, event)
        self._post(self._request_handoff, wanted, message.candidates)

    def _local(self, sequence: Sequence) -> None:
        """Its prompt is computed here."""
        message, _ = self._requests[sequence.id]
        self.counters["local_prefills"] += 1
        event = TimelineEvent(
            "local-prefill", now_ns(), self._worker,
            {"reused_pages": sequence.reused, "tokens": sequence.to_prefill},
        )  # fmt: skip
        self._note(sequence, event)
        self._post(self._to_router, PrefillDone(sequence.id, message.attempt))

    def _prefilled(self, handoff: int) -> None:
        """What has landed may have to wait; the prefill worker's credit need not."""
        reservation = self._reserved.get(handoff)
        if reservation is not None and reservation.at_risk is None:
            message, _ = self._requests[reservation.sequence.id]
            self._post(self._to_router, PrefillDone(message.request, message.attempt))

    def _landed(self, handoff: int, reached_ns: int) -> None:
        reservation = self._reserved.pop(handoff, None)
        if reservation is None:
            return
        if reservation.at_risk is not None:  # given up while its last page landed
            self.engine.pool.release(reservation.at_risk)
            self._measure()
            return
        sequence = reservation.sequence
        message, _ = self._requests[sequence.id]
        self.engine.scheduler.kv_landed(sequence)
        self._note(sequence, TimelineEvent("kv-landed", reached_ns, self._worker))
        self._post(self._to_router, PrefillDone(sequence.id, message.attempt))

    def _lost(self, handoff: int, reason: str) -> None:
        reservation = self._reserved.get(handoff)
        if reservation is None or reservation.at_risk is not None:
            return
        sequence = reservation.sequence
        message, _ = self._requests[sequence.id]
        rest = message.candidates[1:]
        self._requests[sequence.id] = replace(message, candidates=rest), sequence
        reservation.at_risk = self.engine.scheduler.kv_failed(sequence, remote=bool(rest))
        event = TimelineEvent("handoff-lost", now_ns(), self._worker, {"reason": reason})
        self._note(sequence, event)
        self._post(self._to_router, PrefillDone(sequence.id, message.attempt))

    def _freed(self, handoff: int) -> None:
        reservation = self._reserved.pop(handoff, None)
        if reservation is None:
            return  # it landed in the end
        assert reservation.at_risk is not None, "freed before its request had left the pages"
        self.engine.pool.release(reservation.at_risk)
        self._measure()

    def _start(self, job: PrefillJob) -> None:
        sequence = Sequence(f"{job.handoff:016x}", list(job.tokens), None)
        self._jobs[job.handoff] = JobProgress(job, sequence)
        self._job_of[sequence] = job.handoff
        self.engine.scheduler.add(sequence)

    def _stop(self, handoff: int) -> None:
        progress = self._jobs.get(handoff)
        if progress is not None and progress.sequence.phase is not Phase.ENDED:
            self.engine.scheduler.remove(progress.sequence, keep_pages=True)

    def _release(self, handoff: int) -> None:
        self._stop(handoff)
        progress = self._jobs.pop(handoff)
        del self._job_of[progress.sequence]
        self.engine.scheduler.release(progress.sequence)
        self._measure()

    def _push(self, sequence: Sequence, computed: int) -> list[Push]:
        handoff = self._job_of.get(sequence)
        if handoff is None:
            return []
        push = self._jobs[handoff].push_for(computed, self.engine.config.page_tokens)
        return [] if push is None else [push]

    def _output(self, item: Generated, at_ns: int) -> None:
        sequence = item.sequence
        message, _ = self._requests[sequence.id]
        if sequence.generated == 1:
            self._note(sequence, TimelineEvent("first-token", at_ns, self._worker))
        if item.finish is not None:
            del self._requests[sequence.id]
        output = Output(sequence.id, message.attempt, (item.token,), item.finish)
        self._post(self._to_router, output)

    def _note(self, sequence: Sequence, event: TimelineEvent) -> None:
        handoff = self._job_of.get(sequence)
        if handoff is not None:
            self._post(self._note_prefill, handoff, event)
        else:
            self._notes.setdefault(sequence.id, []).append(event)

    def _measure(self) -> None:
        scheduler = self.engine.scheduler
        self.counters["preemptions"] = scheduler.preemptions
        self.load = Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            free_pages=self.engine.pool.available,
        )


def _call_all(calls: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
    for call, arguments in calls:
        call(*arguments)

"""The prefill side of hand-offs under vLLM: which blocks are pushed in which step.

vLLM schedules, allocates and frees. Here a hand-off's two halves meet, in either order: the request
that computes the prompt, and the job that says where its pages are to go.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from relevo.messenger.host import PrefillJob
from relevo.transfer.engine import Push, TransferEngine
from relevo.types import TimelineEvent, now_ns
from relevo.wire.messages import Cancel, Message, PrefillRequest
from relevo.worker.vllm_plan import Compute, Ended, StepPlan

MEET_S = 30.0  # how long a job waits for its request
HOLD_S = 10.0  # how long blocks are kept for a job; many are never asked for
DRAIN_S = 30.0  # longer than any link takes to be given up
REMEMBERED = 16384


@dataclass
class Sending:
    """One hand-off. `complete`: so many tokens are in the pool in every layer; `computing`: and so
    many once the step under way has ended. `pushed`: pages before this one have been."""

    handoff: int
    meet_by: float
    request: str = ""
    queued: bool = False  # its request waits to be scheduled
    job: PrefillJob | None = None
    pages: tuple[int, ...] = ()
    complete: int = 0
    computing: int = 0
    pushed: int = 0
    ended: Ended | None = None
    stopped: bool = False
    over: bool = False  # nothing reads its pages, and nothing will

    def push(self, page_tokens: int) -> Push | None:
        """What can be pushed now and was not yet: complete pages at once, the others layer by
        layer with the step under way."""
        job = self.job
        if job is None or self.stopped or self.over:
            return None
        begin = max(self.pushed, job.first_page)
        ready = job.pages_after(self.complete, page_tokens)
        end = job.pages_after(self.computing, page_tokens)
        if begin >= end:
            return None
        self.pushed = end
        return job.push(
            {i: self.pages[i] for i in range(begin, max(begin, ready))},
            {i: self.pages[i] for i in range(max(begin, ready), end)},
            last=self.computing >= len(job.tokens),
        )


class SendingHost:
    """A PrefillHost. `begin`, `layer`, `end`, `preempt`, `sent` and `waiting` are the engine's
    thread's, the rest the hand-off loop's. `abandon(handoff, reason)` and `note(handoff, event)`
    go there; `tell(message)` is said there to whoever runs this engine, who is to make a request
    for a job that comes without one."""

    def __init__(
        self,
        *,
        worker: str,
        transfer: TransferEngine,
        page_tokens: int,
        layers: int,
        max_tokens: int,
        abandon: Callable[[int, str], object],
        note: Callable[[int, TimelineEvent], object],
        tell: Callable[[Message], object],
    ) -> None:
        self._tell = tell
        self._worker = worker
        self._transfer = transfer
        self._page_tokens = page_tokens
        self._layers = layers
        self._max_tokens = max_tokens
        self._abandon = abandon
        self._note = note
        # Guards all that follows, and keeps the step open while a push joins it.
        self._changed = threading.Condition()
        self._sendings: dict[int, Sending] = {}
        self._by_request: dict[str, Sending] = {}
        self._past: OrderedDict[int, None] = OrderedDict()
        self._sent: set[str] = set()
        self._step: list[Sending] = []
        self._bumped = 0

    # ---- the engine's thread ----

    def preempt(self, requests: Iterable[str]) -> None:
        """Their blocks are about to be overwritten: returns when nothing reads them any more.
        Raises TimeoutError."""
        for request in requests:
            with self._changed:
                sending = self._by_request.get(request)
                if sending is None:
                    continue
                if sending.job is not None and not sending.over:
                    self._abandon(sending.handoff, "its request was preempted")
                    self._await_drain(sending)
                sending.pages, sending.complete, sending.computing = (), 0, 0

    def _await_drain(self, sending: Sending) -> None:
        if not self._changed.wait_for(lambda: sending.over, DRAIN_S):
            raise TimeoutError(
                f"request {sending.request} was preempted, and its writes have not drained within "
                f"{DRAIN_S:.0f} s"
            )

    def begin(self, plan: StepPlan) -> None:
        """A step opens. Its forward pass follows, where it is not empty."""
        now = time.monotonic()
        with self._changed:
            for handoff in plan.queued:
                self._of(handoff, now).queued = True
            for ended in plan.ended:
                self._end_request(ended, now)
            pushes = [push for c in plan.compute if (push := self._compute(c, now)) is not None]
            if self._step:
                self._bumped = 0
                self._transfer.open_step(pushes)

    def _compute(self, compute: Compute, now: float) -> Push | None:
        sending = self._of(compute.handoff, now)
        self._by_request[compute.request] = sending
        sending.request = compute.request
        sending.queued = False
        sending.pages = compute.pages
        sending.computing = compute.computed
        self._step.append(sending)
        detail: dict[str, int | float | str | list[int]] = {"last": compute.computed}
        self._note(sending.handoff, TimelineEvent("prefill-start", now_ns(), self._worker, detail))
        return sending.push(self._page_tokens)

    def layer(self) -> None:
        """The next layer's keys and values are in the pool."""
        if self._step and self._bumped < self._layers:
            self._bumped += 1
            self._transfer.bump()

    def end(self) -> None:
        """The forward pass is over."""
        if not self._step:
            return
        with self._changed:
            while self._bumped < self._layers:  # a graph that ran without our hooks
                self.layer()
            self._transfer.end_step(True)
            for sending in self._step:
                sending.complete = sending.computing
            self._step = []

    def sent(self) -> set[str]:
        """Requests whose blocks may be freed; each once, after its end."""
        with self._changed:
            sent, self._sent = self._sent, set()
            return sent

    @property
    def waiting(self) -> bool:
        """Whether the end of a hand-off is outstanding."""
        with self._changed:
            return bool(self._sent) or any(s.ended for s in self._sendings.values())

    # ---- the hand-off loop's thread: PrefillHost ----

    def refuses(self, job: PrefillJob) -> str | None:
        if len(job.tokens) > self._max_tokens:
            return f"{len(job.tokens)} tokens, {self._max_tokens} are the most here"
        with self._changed:
            if job.handoff in self._past:
                return "its prompt was computed here and is gone"
        return None

    def start(self, job: PrefillJob) -> None:
        with self._changed:
            sending = self._of(job.handoff, time.monotonic())
            sending.job = job
            push = sending.push(self._page_tokens)
            if push is not None:
                self._transfer.add_pushes([push])
            if sending.ended is not None and not sending.ended.computed:
                self._abandon(job.handoff, "its request has ended")
            alone = not sending.request and not sending.queued and sending.ended is None
        if alone:
            self._tell(PrefillRequest(job.handoff, 0, job.request, job.tokens, 0, (), 0, 0))

    def stop(self, handoff: int) -> None:
        with self._changed:
            self._sendings[handoff].stopped = True
        self._tell(Cancel(handoff))

    def release(self, handoff: int) -> None:
        with self._changed:
            sending = self._sendings[handoff]
            sending.over = True
            self._settle(sending)
            self._changed.notify_all()

    def tick(self, now: float) -> None:
        """One half that waited in vain."""
        with self._changed:
            for sending in [s for s in self._sendings.values() if now > s.meet_by]:
                if sending.job is None and sending.ended is not None:
                    sending.over = True
                    self._settle(sending)
                elif sending.job is not None and not sending.request and not sending.queued:
                    sending.meet_by = now + MEET_S
                    self._abandon(sending.handoff, f"no request came within {MEET_S:.0f} s")

    def pages(self, handoff: int) -> list[int]:
        with self._changed:
            return list(self._sendings[handoff].pages)

    # ---- either ----

    def _of(self, handoff: int, now: float) -> Sending:
        return self._sendings.setdefault(handoff, Sending(handoff, now + MEET_S))

    def _end_request(self, ended: Ended, now: float) -> None:
        sending = self._of(ended.handoff, now)
        sending.ended = ended
        sending.queued = False
        sending.meet_by = now + HOLD_S
        if not ended.computed and not sending.over:
            if sending.job is not None:
                self._abandon(ended.handoff, "its request has ended")
            else:
                sending.over = True
        self._settle(sending)

    def _settle(self, sending: Sending) -> None:
        """Forgets what is over on both sides."""
        ended = sending.ended
        if ended is None and (sending.queued or sending.request):
            return  # its request is still to come, or to end
        if not sending.over:
            return
        if ended is not None and ended.held:
            self._sent.add(ended.request)
        del self._sendings[sending.handoff]
        self._by_request.pop(sending.request, None)
        self._past[sending.handoff] = None
        while len(self._past) > REMEMBERED:
            self._past.popitem(last=False)

"""The vLLM connector's half in the scheduler: which requests are handed off, and which blocks.

It sees vLLM's requests and scheduler outputs through the few fields that it needs, so that it runs
without vLLM. Nothing here may raise: an exception would end the engine.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from relevo.kv.hashes import pages_for
from relevo.worker.vllm_plan import (
    Compute,
    Ended,
    HandoffParams,
    Receive,
    StepPlan,
    handoff_id,
    next_attempt,
    params_of,
)

log = logging.getLogger(__name__)

REMEMBERED = 16384  # hand-off ids that were asked for


class Request(Protocol):
    """Of vLLM's request, what is used here."""

    request_id: str
    kv_transfer_params: dict[str, Any] | None
    prompt_token_ids: list[int] | None


@dataclass
class Sending:
    """Prefill side: a request whose prompt is computed for someone."""

    handoff: int
    tokens: int  # that are wanted
    computed: int = 0
    scheduled: bool = False


@dataclass
class Receiving:
    """Decode side: a request whose prompt is computed elsewhere. `asked`: its blocks are being
    written; `settled`: it goes on by itself from now on."""

    params: HandoffParams
    handoff: int
    wanted: Sequence[int]
    asked: bool = False
    settled: bool = False


class SchedulerHalf:
    """`page_tokens`: of a block. Uncached remainders of at most `local_prefill_tokens` are computed
    by the decode side itself."""

    def __init__(self, page_tokens: int, local_prefill_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._local = local_prefill_tokens
        self._sending: dict[str, Sending] = {}
        # By hand-off, also while the blocks of a request that is over are kept for it.
        self._senders: dict[int, str] = {}
        self._receiving: dict[str, Receiving] = {}
        self._used: OrderedDict[int, str] = OrderedDict()  # hand-offs asked for, by which request
        self._receive: list[Receive] = []
        self._aborted: list[str] = []
        self._ended: list[Ended] = []
        self._queued: list[int] = []

    def arrived(self, request: Request) -> None:
        """A new request."""
        try:
            params = params_of(request.kv_transfer_params)
        except msgspec.ValidationError as error:
            log.warning(
                "request %s is not handed off: kv_transfer_params: %s", request.request_id, error
            )
            return
        prompt = request.prompt_token_ids
        if params is None or not prompt:
            return
        wanted = prompt if params.exact and not params.prefill else prompt[:-1]
        if not wanted:
            return
        handoff = handoff_id(params, wanted)
        if params.prefill:
            self._receiving[request.request_id] = Receiving(params, handoff, wanted)
        elif handoff not in self._senders:  # the same prompt twice: the first sends
            self._senders[handoff] = request.request_id
            self._sending[request.request_id] = Sending(handoff, len(wanted))
            self._queued.append(handoff)

    def matched(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """How many tokens beyond `computed` come from elsewhere, and whether they come while the
        request waits; None: to be asked again later. Has no side effects."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.settled:
            return 0, False
        missing = len(receiving.wanted) - computed
        if missing <= self._local:
            return 0, False
        first = self._used.get(receiving.handoff, request.request_id)
        if first != request.request_id:
            # One of several choices for one prompt: the first gets the hand-off, the others find
            # its blocks in the prefix cache.
            other = self._receiving.get(first)
            return (None, False) if other is not None and not other.settled else (0, False)
        return missing, True

    def allocated(self, request: Request, pages: Sequence[int], external: int) -> None:
        """The request's blocks, of which the last `external` tokens of the wanted ones are to
        come."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.asked:
            return
        if external == 0:
            receiving.settled = True
            return
        receiving.asked = True
        self._use(receiving.handoff, request.request_id)
        tokens = receiving.wanted
        first = (len(tokens) - external) // self._page_tokens
        end = pages_for(len(tokens), self._page_tokens)
        self._receive.append(
            Receive(
                handoff=receiving.handoff,
                request=request.request_id,
                label=receiving.params.label,
                tokens=tuple(tokens),
                first_page=first,
                pages=tuple(pages[first:end]),
                prefill=receiving.params.prefill,
            )
        )

    def _use(self, handoff: int, request: str) -> None:
        self._used[handoff] = request
        while len(self._used) > REMEMBERED:
            self._used.popitem(last=False)

    def plan(
        self,
        scheduled: Mapping[str, int],
        computed: Mapping[str, int],
        pages: Callable[[str], Sequence[int]],
        preempted: Iterable[str],
    ) -> StepPlan:
        """What goes with a step: by request the tokens that are `scheduled` in it and those that
        were `computed` before it; `pages(request)` are its blocks."""
        overwritten = tuple(r for r in preempted if r in self._sending)
        for request in overwritten:
            self._sending[request].computed = 0
        compute: list[Compute] = []
        for request, tokens in scheduled.items():
            sending = self._sending.get(request)
            if sending is None:
                continue
            sending.scheduled = True
            sending.computed = computed[request] + tokens
            done = min(sending.computed, sending.tokens)
            compute.append(Compute(sending.handoff, request, done, tuple(pages(request))))
        plan = StepPlan(
            receive=tuple(self._receive),
            aborted=tuple(self._aborted),
            compute=tuple(compute),
            preempted=overwritten,
            ended=tuple(self._ended),
            queued=tuple(self._queued),
            empty=not scheduled,
        )
        self._receive, self._aborted, self._ended, self._queued = [], [], [], []
        return plan

    def received(self, requests: Iterable[str], failed: Collection[str]) -> None:
        """What the rank reports: landed, or given up and free. The next prefill worker is asked
        where there is one that takes any prompt; else the request goes on by itself."""
        for request in requests:
            receiving = self._receiving.get(request)
            if receiving is None:
                continue
            params = receiving.params
            if request in failed and params.exact and len(params.prefill) > 1:
                receiving.params = next_attempt(params)
                receiving.handoff = receiving.params.handoff
                receiving.asked = False
            else:
                receiving.settled = True

    def finished(self, request: Request) -> bool:
        """The request is over. True: its blocks are kept until the rank says that they were
        sent."""
        receiving = self._receiving.pop(request.request_id, None)
        if receiving is not None and receiving.asked and not receiving.settled:
            self._aborted.append(request.request_id)
        sending = self._sending.pop(request.request_id, None)
        if sending is None:
            return False
        whole = sending.computed >= sending.tokens
        ended = Ended(sending.handoff, request.request_id, whole, sending.scheduled)
        self._ended.append(ended)
        if not ended.held:
            del self._senders[ended.handoff]
        return ended.held

    def sent(self, requests: Iterable[str]) -> None:
        """What the rank reports: their blocks are free."""
        gone = set(requests)
        self._senders = {h: r for h, r in self._senders.items() if r not in gone}

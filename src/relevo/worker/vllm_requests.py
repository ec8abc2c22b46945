"""The requests of a worker that runs vLLM: from the router's words to vLLM's, and back."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from relevo.types import FinishReason, Role, Sampling, TimelineEvent, now_ns
from relevo.wire.messages import (
    Generate,
    Heartbeat,
    Load,
    Message,
    Output,
    PrefillDone,
    PrefillRequest,
    RequestFailed,
    Timeline,
)

log = logging.getLogger(__name__)

PROBE_S = 60.0
Key = TypeVar("Key", str, int)
Work = Coroutine[Any, Any, None]


class VllmRequests:
    """A RequestHost: `generate`, `abort` and `abort_all` are called on the control thread, `beat`
    on any; the rest runs on the event loop's. `engine`, `to_router` and `on_lost` are set before
    the first request."""

    engine: Any  # vLLM's AsyncLLM
    to_router: Callable[[Message], object]
    on_lost: Callable[[str], object]

    def __init__(self, role: Role, worker: str) -> None:
        self._role = role
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._messages: dict[str, Generate] = {}  # of those running, and of some that ran
        self._computing: dict[int, asyncio.Task[None]] = {}  # by hand-off
        self._steps = 0
        self.pages = 0
        self._last_running = 0
        self._usage = 0.0
        self.counters: dict[str, int] = {"local_prefills": 0, "handoffs_requested": 0}

    @property
    def load(self) -> Load:
        """As of vLLM's last step; what it has not taken on yet waits."""
        here = len(self._running)
        running = min(self._last_running, here)
        free = self.pages - round(self._usage * self.pages)
        return Load(running=running, waiting=here - running, free_pages=free)

    # ---- control thread ----

    def generate(self, message: Generate) -> None:
        self._loop.call_soon_threadsafe(self._generate, message)

    def abort(self, request: str) -> None:
        self._loop.call_soon_threadsafe(self._abort, request)

    def abort_all(self, then: Callable[[], object]) -> None:
        async def drop() -> None:
            await self.drop_all()
            then()

        asyncio.run_coroutine_threadsafe(drop(), self._loop)

    def beat(self) -> Heartbeat:
        return Heartbeat(self._steps, busy=bool(self._running or self._computing))

    # ---- event loop ----

    async def endpoint(self) -> str:
        """Where the connector's rank listens: any request that asks is told."""
        params = _params({"handoff": 0}, max_tokens=1)
        prompt = {"prompt_token_ids": [0]}
        async with asyncio.timeout(PROBE_S):
            async for output in self.engine.generate(prompt, params, "endpoint"):
                answer = output.kv_transfer_params
        return str(answer["relevo"]["endpoint"])

    def compute(self, job: PrefillRequest) -> None:
        """A prompt for someone else."""
        self._start(self._computing, job.handoff, self._compute(job))

    def stop_computing(self, handoff: int) -> None:
        task = self._computing.get(handoff)
        if task is not None:
            task.cancel()

    def prefilled(self, request: str) -> None:
        """Its prefill worker has done its part, or never will."""
        if request in self._running:
            self.to_router(PrefillDone(request, self._messages[request].attempt))

    def measured(self, running: int, usage: float, events: dict[str, int]) -> None:
        """vLLM's own counts, after a step."""
        self._steps += 1
        self._last_running = running
        self._usage = usage
        for event, count in events.items():
            self.counters[event] = self.counters.get(event, 0) + count

    async def drop_all(self) -> None:
        tasks = [*self._running.values(), *self._computing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _generate(self, message: Generate) -> None:
        for request in [r for r in self._messages if r not in self._running]:
            del self._messages[request]
        known = self._messages.get(message.request)
        if known is not None and known.attempt >= message.attempt:
            return  # a repeated dispatch
        self._abort(message.request)
        self._messages[message.request] = message
        self._start(self._running, message.request, self._run(message))

    def _abort(self, request: str) -> None:
        task = self._running.get(request)
        if task is not None:
            task.cancel()

    @staticmethod
    def _start(tasks: dict[Key, asyncio.Task[None]], key: Key, work: Work) -> None:
        """In `tasks` for as long as it runs: also a task that is cancelled before it begins."""

        def ended(task: asyncio.Task[None]) -> None:
            if tasks.get(key) is task:
                del tasks[key]

        tasks[key] = asyncio.create_task(work)
        tasks[key].add_done_callback(ended)

    async def _run(self, message: Generate) -> None:
        reason = "vLLM ended it without a word"
        try:
            if await self._stream(message):
                return
        except EngineDeadError as error:
            self.on_lost(f"vLLM's engine died: {error}")
            return
        except Exception as error:  # vLLM's errors have no common base
            reason = f"vLLM: {error}"
        self.to_router(RequestFailed(message.request, message.attempt, reason))

    async def _stream(self, message: Generate) -> bool:
        """Whether it came to its end."""
        ours: dict[str, object] | None = None
        if message.candidates:
            self.counters["handoffs_requested"] += 1
            ours = {
                "handoff": secrets.randbits(63),
                "prefill": [candidate.endpoint for candidate in message.candidates],
                "exact": True,
                "label": message.request,
            }
        elif self._role is Role.DECODE:
            self.counters["local_prefills"] += 1
        params = _sampling(message.sampling, ours)
        # vLLM wants a name for each attempt.
        name = f"{message.request}.{message.attempt}"
        prompt = {"prompt_token_ids": list(message.tokens)}
        first, finish = True, None
        async for output in self.engine.generate(prompt, params, name):
            (completion,) = output.outputs
            if first and completion.token_ids:
                first = False
                event = TimelineEvent("first-token", now_ns(), self._worker)
                self.to_router(Timeline(message.request, (event,)))
                self.prefilled(message.request)  # also where all of it was in our own cache
            finish = _finish(completion.finish_reason)
            self.to_router(
                Output(message.request, message.attempt, tuple(completion.token_ids), finish)
            )
        return finish is not None

    async def _compute(self, job: PrefillRequest) -> None:
        params = _params({"handoff": job.handoff, "exact": True}, max_tokens=1)
        prompt = {"prompt_token_ids": list(job.tokens)}
        try:
            async for _ in self.engine.generate(prompt, params, f"{job.handoff:016x}"):
                pass
        except EngineDeadError as error:
            self.on_lost(f"vLLM's engine died: {error}")
        except Exception as error:  # as in _run; the decode side hears of it from the connector
            log.warning("hand-off %016x: vLLM refuses its prompt: %s", job.handoff, error)


def _params(ours: dict[str, object], **rest: Any) -> SamplingParams:
    extra = {"kv_transfer_params": {"relevo": ours}}
    return SamplingParams(temperature=0, detokenize=False, extra_args=extra, **rest)


def _sampling(sampling: Sampling, ours: dict[str, object] | None) -> SamplingParams:
    """Stop tokens are all that ends a generation of ours; texts are the router's business."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=None if ours is None else {"kv_transfer_params": {"relevo": ours}},
    )


def _finish(reason: str | None) -> FinishReason | None:
    return FinishReason(reason) if reason in ("stop", "length") else None

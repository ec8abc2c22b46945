"""Dispatch: requests wait here, go to workers when there is credit, and come back as tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec
import zmq.asyncio

from relevo.errors import InvalidRequest, Overloaded, StateError, WorkerLost
from relevo.router.policy import choose
from relevo.router.registry import Held, Member, Registry
from relevo.router.timelines import RequestTimeline, Timelines
from relevo.types import FinishReason, Role, Sampling, TimelineEvent, now_ns
from relevo.wire.liveness import HEARTBEAT_S, Liveness
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    AnyMessage,
    Generate,
    HandoffHeld,
    HandoffLetGo,
    Heartbeat,
    Message,
    Output,
    PrefillCandidate,
    PrefillDone,
    Refused,
    Register,
    RegisterAgain,
    Registered,
    ReleaseHandoff,
    RequestFailed,
    Timeline,
    WorkerStatus,
)
from relevo.wire.sockets import AsyncListener

log = logging.getLogger(__name__)

MOST_REQUESTS = 4096
MOST_ATTEMPTS = 3  # a request that every worker dies of must not take all of them
REPLACEMENT_S = 30.0


@dataclass(frozen=True)
class Tokens:
    """Some tokens of a generation; `finish` comes with the last ones."""

    tokens: tuple[int, ...]
    finish: FinishReason | None


@dataclass(eq=False)
class Request:
    """A request from submission to end. `outputs` holds tokens, or the error that ended it;
    `generated` are the tokens that went through it."""

    id: str
    number: int
    tokens: tuple[int, ...]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    attempt: int = 0
    worker: str | None = None
    prefill: str | None = None
    outputs: asyncio.Queue[Tokens | StateError] = field(default_factory=asyncio.Queue)


class Router:
    """All methods on one asyncio loop."""

    def __init__(self, bind: str) -> None:
        self._context = zmq.asyncio.Context()
        self._listener = AsyncListener(self._context, bind, "control-port")
        self.endpoint = self._listener.endpoint
        self.registry = Registry()
        self.timelines = Timelines()
        self.counters: Counter[str] = Counter()
        self._queue: deque[Request] = deque()
        self._ready_at = time.monotonic()
        self._requests: dict[str, Request] = {}
        self._undivided = False

    async def run(self) -> None:
        """Until cancelled, or until something in here fails, which it raises."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive_forever())
                group.create_task(self._watch_workers())
        finally:
            self._listener.close()
            self._context.term()

    # ---- for the server ----

    @property
    def model(self) -> str | None:
        """The name of the model that the workers serve, or None while there is no worker."""
        return next((m.info.model for m in self.registry), None)

    @property
    def ready(self) -> bool:
        return bool(self.registry.generating())

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._requests) - len(self._queue)

    def max_context(self) -> int:
        """The longest context (prompt and answer, in tokens) that every worker holds."""
        if not self.ready:
            raise Overloaded("no worker is ready")
        return min(m.info.max_context for m in self.registry)

    async def generate(
        self, id: str, tokens: tuple[int, ...], sampling: Sampling
    ) -> AsyncGenerator[Tokens, None]:
        """Yields tokens as they come. Leaving the iteration early cancels the request everywhere.

        Raises InvalidRequest, Overloaded or whatever ended the request.
        """
        self._check(tokens, sampling)
        self.counters["requests"] += 1
        request = Request(id, self.counters["requests"], tokens, sampling)
        self.timelines.open(RequestTimeline(id, len(tokens)))
        self._note(request, "received")
        try:
            self._requests[id] = request
            self._queue.append(request)
            self._note(request, "queued")
            self._dispatch()
            while True:
                output = await request.outputs.get()
                if isinstance(output, StateError):
                    raise output
                yield output
                if output.finish is not None:
                    return
        finally:
            self._end(request)

    def _check(self, tokens: tuple[int, ...], sampling: Sampling) -> None:
        limit = self.max_context()
        if not tokens:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        if len(tokens) + sampling.max_tokens > limit:
            raise InvalidRequest(
                f"this deployment's context is {limit} tokens, but the prompt has {len(tokens)} "
                f"and {sampling.max_tokens} more may be generated",
                "prompt",
                "context_length_exceeded",
            )
        vocabulary = min(m.info.vocabulary for m in self.registry)
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise InvalidRequest(
                    f"token id {token} is not in the vocabulary (0 to {vocabulary - 1})", "prompt"
                )
        if len(self._requests) >= MOST_REQUESTS:
            self.counters["refused"] += 1
            raise Overloaded(f"{MOST_REQUESTS} requests are under way already", retry_after_s=1)

    def held(self) -> list[tuple[Member, Held]]:
        """Hand-offs that wait to be released, and the workers that they landed at."""
        return [(member, held) for member in self.registry for held in member.held.values()]

    def release(self, handoff: int) -> bool:
        """Lets a held hand-off go on; False where none of this id is held."""
        for member in self.registry:
            if handoff in member.held:
                self._reply(member.route, ReleaseHandoff(handoff))
                return True
        return False

    # ---- dispatch ----

    def _dispatch(self) -> None:
        """Sends what can be sent, in order: nobody overtakes a request that waits for the same
        thing."""
        blocked: list[Request] = []
        views = self.registry.views()
        while self._queue:
            request = self._queue.popleft()
            length = len(request.tokens) + len(request.generated)
            choice = choose(length, views, on_credit=not blocked)
            if choice is None:
                blocked.append(request)
                continue
            generates = self.registry.get(choice.generates)
            assert generates is not None
            members = [m for name in choice.candidates if (m := self.registry.get(name))]
            self._send_generate(request, generates, members)
            views = self.registry.views()
        self._queue.extend(blocked)

    def _send_generate(self, request: Request, worker: Member, prefill: list[Member]) -> None:
        # A later attempt goes on after the tokens that the client has.
        tokens = request.tokens + tuple(request.generated)
        request.attempt += 1
        request.worker = worker.info.worker
        worker.requests.add(request.id)
        timeline = self.timelines.get(request.id)
        workers = {worker.info.role.value: worker.info.worker}
        if prefill:
            request.prefill = prefill[0].info.worker
            prefill[0].prefilling[request.id] = len(tokens)
            workers[Role.PREFILL.value] = request.prefill
        else:
            self._note_undivided(worker, len(tokens))
        if timeline is not None:
            timeline.workers = workers
        self._note(request, "dispatched")
        left = request.sampling.max_tokens - len(request.generated)
        sampling = msgspec.structs.replace(request.sampling, max_tokens=left)
        candidates = tuple(PrefillCandidate(m.info.worker, m.info.endpoint) for m in prefill)
        self._listener.send(
            worker.route,
            Generate(request.id, request.attempt, tokens, sampling, candidates),
        )

    def _note_undivided(self, worker: Member, tokens: int) -> None:
        """A decode worker computes a prompt that should have been handed off: said aloud, once
        until there is a prefill worker again."""
        short = tokens - 1 <= worker.info.local_prefill_tokens
        if worker.info.role is not Role.DECODE or short:
            return
        self.counters["not_disaggregated"] += 1
        if not self._undivided:
            log.warning("there is no prefill worker: decode workers compute prompts themselves")
        self._undivided = True

    def _end(self, request: Request) -> None:
        """Forgets a request; where it still runs, its worker is told to stop."""
        if self._requests.pop(request.id, None) is None:
            return
        if request in self._queue:
            self._queue.remove(request)
        member = self.registry.get(request.worker) if request.worker else None
        if member is not None and request.id in member.requests:
            self.counters["cancelled"] += 1
            member.requests.discard(request.id)
            self._listener.send(member.route, Abort(request.id))
        self._free_credit(request)
        self._dispatch()

    def _free_credit(self, request: Request) -> None:
        member = self.registry.get(request.prefill) if request.prefill else None
        if member is not None:
            member.prefilling.pop(request.id, None)
        request.prefill = None

    # ---- from workers ----

    async def _receive_forever(self) -> None:
        while True:
            self._handle(*await self._listener.receive())

    def _handle(self, route: bytes, message: AnyMessage) -> None:
        if isinstance(message, Register):
            self._register(route, message)
            return
        member = self.registry.by_route(route)
        if member is None:
            self._reply(route, RegisterAgain())
            return
        member.liveness.heard(time.monotonic())
        match message:
            case Heartbeat():
                member.liveness.progress(time.monotonic(), message.steps, message.busy)
                self._reply(route, Heartbeat())
            case WorkerStatus():
                member.load, member.counters = message.load, message.counters
                member.errors = message.errors
            case HandoffHeld():
                member.held[message.handoff] = Held(message, time.monotonic())
            case HandoffLetGo():
                member.held.pop(message.handoff, None)
            case Output():
                self._output(member, message)
            case PrefillDone():
                request = self._requests.get(message.request)
                if request is not None and request.attempt == message.attempt:
                    self._free_credit(request)
                    self._dispatch()
            case RequestFailed():
                self._failed(member, message)
            case Timeline():
                self.timelines.add(message.request, message.events)
            case _:
                log.warning("%s sent %s", member.info.worker, type(message).__name__)

    def _register(self, route: bytes, message: Register) -> None:
        refusal = self._refusal(message)
        if refusal is not None:
            self._reply(route, Refused(refusal))
            return
        member = Member(route, message, Liveness(time.monotonic()))
        replaced = self.registry.add(member)
        if replaced is not None:
            if replaced.info.incarnation != message.incarnation:  # should it still live
                self._reply(replaced.route, Refused("another worker has taken its name"))
            self._lose(replaced, "it was restarted")
        self._reply(route, Registered())
        log.info("worker %s (%s) registered", message.worker, message.role)
        if message.role is Role.PREFILL:
            self._undivided = False
        self._dispatch()

    def _refusal(self, message: Register) -> str | None:
        if message.version != PROTOCOL_VERSION:
            return f"protocol version {message.version}, the router has {PROTOCOL_VERSION}"
        if self.model is not None and message.model != self.model:
            return f"model {message.model}, the router serves {self.model}"
        return None

    def _output(self, member: Member, message: Output) -> None:
        request = self._requests.get(message.request)
        if request is None or request.attempt != message.attempt:
            return
        self.counters["generated_tokens"] += len(message.tokens)
        if message.finish is not None:
            member.requests.discard(request.id)
            self._note(request, "done")
        request.generated += message.tokens
        request.outputs.put_nowait(Tokens(message.tokens, message.finish))

    def _failed(self, member: Member, message: RequestFailed) -> None:
        request = self._requests.get(message.request)
        if request is None or request.attempt != message.attempt:
            return
        member.requests.discard(request.id)
        request.outputs.put_nowait(StateError(message.reason))
        self.counters["failed"] += 1

    async def _watch_workers(self) -> None:
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(HEARTBEAT_S)
            now = time.monotonic()
            if now - asleep > 2 * HEARTBEAT_S:  # this process was stopped, not the workers
                for member in self.registry:
                    member.liveness.heard(now)
                continue
            for member in self.registry:
                reason = member.liveness.lost(now)
                if reason is not None:
                    self.registry.remove(member)
                    self._lose(member, reason)
            self._give_up_waiting(now)

    def _lose(self, member: Member, why: str) -> None:
        """What ran on a lost worker goes to another one, first in line, with the tokens that its
        client has already. What the worker was only prefilling goes on at its decode worker, which
        hears of the loss by itself."""
        log.error("worker %s is lost: %s", member.info.worker, why)
        self.counters["workers_lost"] += 1
        lost = [request for id in member.requests if (request := self._requests.get(id))]
        member.requests.clear()
        for request in sorted(lost, key=lambda r: r.number, reverse=True):
            self._free_credit(request)
            request.worker = None
            if request.attempt >= MOST_ATTEMPTS:
                self._fail(request, f"worker {member.info.worker} was lost: {why}")
            else:
                self.counters["resubmitted"] += 1
                self._note(request, "resubmitted")
                self._queue.appendleft(request)
        self._dispatch()

    def _give_up_waiting(self, now: float) -> None:
        """Requests wait for a lost worker to be replaced, but not for ever."""
        if self.ready:
            self._ready_at = now
        elif now - self._ready_at > REPLACEMENT_S:
            while self._queue:
                self._fail(self._queue.popleft(), "no worker that generates is left")

    def _fail(self, request: Request, why: str) -> None:
        self.counters["failed"] += 1
        request.outputs.put_nowait(WorkerLost(why))

    def _reply(self, route: bytes, message: Message) -> None:
        self._listener.send(route, message)

    def _note(self, request: Request, name: str) -> None:
        self.timelines.add(request.id, (TimelineEvent(name, now_ns(), "router"),))

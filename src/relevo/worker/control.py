"""The control thread of a worker of ours: the hand-off loop, with a link to the router."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import zmq
from msgspec.structs import replace

from relevo.messenger.decode_side import DecodeSide
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.types import TimelineEvent
from relevo.wire.liveness import Liveness
from relevo.wire.messages import (
    Abort,
    Generate,
    Heartbeat,
    Load,
    Message,
    Refused,
    Register,
    RegisterAgain,
    Registered,
    ReleaseHandoff,
    Timeline,
    WorkerStatus,
)
from relevo.wire.sockets import Connection, Listener
from relevo.wire.unreliable import ControlFaults
from relevo.worker.handoff_loop import HandoffLoop

REGISTER_S = 5.0  # how long the router has to answer


class RequestHost(Protocol):
    """An engine, as the router sees it. Methods only queue."""

    @property
    def load(self) -> Load: ...
    @property
    def counters(self) -> dict[str, int]: ...
    def generate(self, message: Generate) -> None: ...
    def abort(self, request: str) -> None: ...
    def abort_all(self, then: Callable[[], object]) -> None:
        """Drops every request, and calls `then` on any thread."""
        ...


class Control(HandoffLoop):
    """Everything here runs on the control thread, but for `post`, `stop` and the constructor.

    `on_registered` is called when the router has taken the worker in, `on_lost(reason)` when the
    router is gone or does not want it.
    """

    def __init__(
        self,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        router: str,
        register: Register,
        host: RequestHost,
        transfer: TransferEngine | None,
        listener: Listener | None,
        faults: ControlFaults | None,
        on_registered: Callable[[], object],
        on_lost: Callable[[str], object],
    ) -> None:
        super().__init__(context, transfer, listener, faults)
        self._register = register
        self._host = host
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._router = Connection(context, router)
        self._liveness = Liveness(time.monotonic())
        self._dropping = False  # what runs, before registering again
        self._registering_until = 0.0
        self._beat: Callable[[], Heartbeat] = Heartbeat
        self._poller.register(self._router.socket, zmq.POLLIN)

    def attach(
        self,
        beat: Callable[[], Heartbeat],
        decode: DecodeSide | None,
        prefill: PrefillSide | None,
    ) -> None:
        """Before `run`: the messenger's sides that this worker has."""
        self._beat = beat
        self.attach_sides(decode, prefill)

    def run(self) -> None:
        self.to_router(self._register)
        super().run()

    def to_router(self, message: Message) -> None:
        self._router.send(message)

    def note(self, request: str, events: tuple[TimelineEvent, ...]) -> None:
        self.to_router(Timeline(request, events))

    def _receive(self) -> None:
        for message in self._router.receive():
            self._from_router(message)
        super()._receive()

    def _from_router(self, message: object) -> None:
        self._liveness.heard(time.monotonic())
        match message:
            case Registered():
                self._registering_until = 0.0
                self._on_registered()
            case Generate():
                self._host.generate(message)
            case Abort():
                self._host.abort(message.request)
            case ReleaseHandoff() if self._decode is not None:
                self._decode.release(message.handoff)
            case RegisterAgain():
                self._register_again(time.monotonic())
            case Refused():
                self._on_lost(f"the router refused this worker: {message.reason}")

    def _register_again(self, now: float) -> None:
        """The router was restarted, or had given this worker up. Tried for as long as it takes: the
        socket connects anew by itself. One try at a time, however often the router asks; and only
        when the engine loop has dropped what it ran, which a hung one never does."""
        if self._dropping or now < self._registering_until:
            return
        self._dropping = True
        self._host.abort_all(lambda: self.post(self._all_dropped))

    def _all_dropped(self) -> None:
        now = time.monotonic()
        self._dropping = False
        self._registering_until = now + REGISTER_S
        self._liveness.heard(now)
        self.to_router(self._register)

    def _tick(self, now: float) -> None:
        if self._liveness.due(now):
            self.to_router(self._beat())
            counters = self._host.counters | self.counters()
            self.to_router(WorkerStatus(self._load(), counters, self._errors()))
        if self._liveness.lost(now) is not None:
            self._register_again(now)
        super()._tick(now)

    def _load(self) -> Load:
        load = self._host.load
        if self._transfer is not None:
            load = replace(load, in_flight=self._transfer.in_flight)
        if self._prefill is not None:
            load = replace(load, handoffs=self._prefill.states)
        if self._decode is not None:
            load = replace(
                load,
                quarantined_pages=self._decode.quarantined_pages,
                handoffs=self._decode.states,
                slots=self._decode.slots_in_use,
            )
        return load

    def _errors(self) -> dict[str, int]:
        return self._transfer.errors() if self._transfer is not None else {}

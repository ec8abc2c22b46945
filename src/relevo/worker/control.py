"""The control thread: it owns sockets and hand-off tables, so that heartbeats and cancels never
wait for a forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import zmq
from msgspec.structs import replace

from relevo.messenger.decode_side import DecodeSide
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.types import TimelineEvent
from relevo.wire.liveness import HEARTBEAT_S, Liveness
from relevo.wire.messages import (
    Abort,
    FromDecode,
    FromPrefill,
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
from relevo.wire.unreliable import ControlFaults, UnreliableSends
from relevo.worker.embedded import EmbeddedHost
from relevo.worker.inbox import Inbox

REGISTER_S = 5.0  # how long the router has to answer


class Control:
    """Everything here runs on the control thread, but for `post` and the constructor.

    `on_registered` is called when the router has taken the worker in, `on_lost(reason)` when the
    router is gone or does not want it. With `faults` what is said to other workers is unreliable.
    """

    def __init__(
        self,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        router: str,
        register: Register,
        host: EmbeddedHost,
        transfer: TransferEngine | None,
        listener: Listener | None,
        faults: ControlFaults | None,
        on_registered: Callable[[], object],
        on_lost: Callable[[str], object],
    ) -> None:
        self._context = context
        self._register = register
        self._host = host
        self._transfer = transfer
        self._listener = listener
        self._unreliable = UnreliableSends(faults) if faults else None
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._inbox = Inbox()
        self._poller = zmq.Poller()
        self._router = Connection(context, router)
        self._liveness = Liveness(time.monotonic())
        self._prefill_peers: dict[str, Connection] = {}
        self._decode: DecodeSide | None = None
        self._prefill: PrefillSide | None = None
        self._stopping = False
        self._dropping = False  # what runs, before registering again
        self._registering_until = 0.0
        self._beat: Callable[[], Heartbeat] = Heartbeat
        for source in (self._router.socket, self._inbox.fd):
            self._poller.register(source, zmq.POLLIN)

    def attach(
        self,
        beat: Callable[[], Heartbeat],
        decode: DecodeSide | None,
        prefill: PrefillSide | None,
    ) -> None:
        """Before `run`: the messenger's sides that this worker has."""
        self._beat = beat
        self._decode = decode
        self._prefill = prefill
        if self._transfer is not None:
            self._poller.register(self._transfer.event_fd, zmq.POLLIN)
        if self._listener is not None:
            self._poller.register(self._listener.socket, zmq.POLLIN)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        """From any thread."""
        self._inbox.post(call, *arguments)

    def stop(self) -> None:
        """From any thread."""

        def end() -> None:
            self._stopping = True

        self._inbox.post(end)

    def run(self) -> None:
        self.to_router(self._register)
        while not self._stopping:
            self._poller.poll(int(self._wait_s() * 1000))
            # Taken before the inbox: what the engine loop posted before these happened is then
            # there to be run before them.
            events = self._transfer.poll_events() if self._transfer is not None else []
            self._inbox.run_all()
            for event in events:
                for side in (self._decode, self._prefill):
                    if side is not None:
                        side.transfer_event(event)
            self._receive()
            self._tick(time.monotonic())

    def _wait_s(self) -> float:
        if self._unreliable is None:
            return HEARTBEAT_S
        return self._unreliable.wait_s(time.monotonic(), HEARTBEAT_S)

    # ---- what the host and the messenger send ----

    def to_router(self, message: Message) -> None:
        self._router.send(message)

    def to_decode(self, route: bytes, message: Message) -> None:
        if self._listener is not None:
            self._send(partial(self._listener.send, route, message))

    def to_prefill(self, endpoint: str, message: Message) -> None:
        connection = self._prefill_peers.get(endpoint)
        if connection is None:
            connection = Connection(self._context, endpoint)
            self._prefill_peers[endpoint] = connection
            self._poller.register(connection.socket, zmq.POLLIN)
        self._send(partial(connection.send, message))

    def _send(self, send: Callable[[], object]) -> None:
        if self._unreliable is None:
            send()
        else:
            self._unreliable.send(send, time.monotonic())

    def close_prefill(self, endpoint: str) -> None:
        connection = self._prefill_peers.pop(endpoint, None)
        if connection is not None:
            self._poller.unregister(connection.socket)
            connection.close()

    def note(self, request: str, events: tuple[TimelineEvent, ...]) -> None:
        self.to_router(Timeline(request, events))

    # ---- what arrives ----

    def _receive(self) -> None:
        for message in self._router.receive():
            self._from_router(message)
        if self._listener is not None and self._prefill is not None:
            for route, message in self._listener.receive():
                self._prefill.handle(route, cast(FromDecode, message))
        if self._decode is not None:
            for endpoint, connection in list(self._prefill_peers.items()):
                for message in connection.receive():
                    self._decode.handle(endpoint, cast(FromPrefill, message))

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
            self.to_router(WorkerStatus(self._load(), self._counters(), self._errors()))
        if self._liveness.lost(now) is not None:
            self._register_again(now)
        if self._unreliable is not None:
            self._unreliable.send_due(now)
        if self._decode is not None:
            self._decode.tick(now)
        if self._prefill is not None:
            self._prefill.tick(now)

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

    def _counters(self) -> dict[str, int]:
        counters = dict(self._host.counters)
        if self._transfer is not None:
            counters |= {f"transfer_{k}": v for k, v in self._transfer.statistics().items()}
        for side in (self._decode, self._prefill):
            if side is not None:
                counters |= {f"handoff_{k}": v for k, v in side.counters.items()}
        if self._unreliable is not None:
            counters |= {f"messages_{k}": v for k, v in self._unreliable.counters.items()}
        return counters

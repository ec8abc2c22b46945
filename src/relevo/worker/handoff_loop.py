"""The thread that owns sockets and hand-off tables, so that heartbeats and cancels never wait for
a forward pass."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import zmq

from relevo.messenger.decode_side import DecodeSide
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.wire.liveness import HEARTBEAT_S
from relevo.wire.messages import FromDecode, FromPrefill, Message
from relevo.wire.sockets import Connection, Listener
from relevo.wire.unreliable import ControlFaults, UnreliableSends
from relevo.worker.inbox import Inbox

log = logging.getLogger(__name__)


class HandoffLoop:
    """Runs the sides of the messenger that a worker has, on the thread that calls `run`. Everything
    here runs on that thread, but for `post`, `stop`, and what comes before `run`.

    `listener` is where decode workers reach this one. With `faults` what is said to other workers
    is unreliable.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        transfer: TransferEngine | None,
        listener: Listener | None,
        faults: ControlFaults | None,
    ) -> None:
        self._context = context
        self._transfer = transfer
        self._listener = listener
        self._unreliable = UnreliableSends(faults) if faults else None
        self._inbox = Inbox()
        self._poller = zmq.Poller()
        self._prefill_peers: dict[str, Connection] = {}
        self._decode: DecodeSide | None = None
        self._prefill: PrefillSide | None = None
        self._stopping = False
        self._on_tick: Callable[[float], object] = lambda now: None
        self._poller.register(self._inbox.fd, zmq.POLLIN)

    def attach_sides(
        self,
        decode: DecodeSide | None,
        prefill: PrefillSide | None,
        on_tick: Callable[[float], object] = lambda now: None,
    ) -> None:
        """Before `run`. `on_tick(now)` is called at least once per heartbeat interval."""
        self._on_tick = on_tick
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

    def to_decode(self, route: bytes, message: Message) -> None:
        if self._listener is not None:
            self._send(partial(self._listener.send, route, message))

    def to_prefill(self, endpoint: str, message: Message) -> None:
        connection = self._prefill_peers.get(endpoint)
        if connection is None:
            try:
                connection = Connection(self._context, endpoint)
            except zmq.ZMQError as error:  # the link's deadline does the rest
                log.warning("cannot reach %s: %s", endpoint, error)
                return
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

    def _receive(self) -> None:
        if self._listener is not None and self._prefill is not None:
            for route, message in self._listener.receive():
                self._prefill.handle(route, cast(FromDecode, message))
        if self._decode is not None:
            for endpoint, connection in list(self._prefill_peers.items()):
                for message in connection.receive():
                    self._decode.handle(endpoint, cast(FromPrefill, message))

    def _tick(self, now: float) -> None:
        if self._unreliable is not None:
            self._unreliable.send_due(now)
        if self._decode is not None:
            self._decode.tick(now)
        if self._prefill is not None:
            self._prefill.tick(now)
        self._on_tick(now)

    def counters(self) -> dict[str, int]:
        """Of the transfer engine, of both sides, and of messages that went astray on purpose."""
        counters: dict[str, int] = {}
        if self._transfer is not None:
            counters |= {f"transfer_{k}": v for k, v in self._transfer.statistics().items()}
        for side in (self._decode, self._prefill):
            if side is not None:
                counters |= {f"handoff_{k}": v for k, v in side.counters.items()}
        if self._unreliable is not None:
            counters |= {f"messages_{k}": v for k, v in self._unreliable.counters.items()}
        return counters

"""ZeroMQ sockets that carry control messages. Sends never block; what a dead peer does not take
is dropped, and its silence is what tells. A connection that the network made connect anew comes
under a new route: messages may have been lost with the old one, so it has to introduce itself
again."""

from __future__ import annotations

import logging
from typing import Any

import zmq
import zmq.asyncio

from relevo.errors import ConfigError
from relevo.wire.codec import ProtocolError, decode, encode
from relevo.wire.messages import AnyMessage, Message

log = logging.getLogger(__name__)

_HIGH_WATER = 100_000


def _tuned(socket: Any) -> Any:
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = _HIGH_WATER
    return socket


def _understood(frames: list[bytes]) -> AnyMessage | None:
    """A message is one frame. Anything else is no peer of ours, and must not hurt it."""
    try:
        if len(frames) != 1:
            raise ProtocolError(f"{len(frames)} frames, a message has one")
        return decode(frames[0])
    except ProtocolError as error:
        log.warning("ignored: %s", error)
        return None


class Listener:
    """A bound socket that many peers connect to; each is known by its route."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], bind: str, key: str) -> None:
        self.socket = _tuned(context.socket(zmq.ROUTER))
        try:
            self.socket.bind(bind)
        except zmq.ZMQError as error:
            self.socket.close()
            raise ConfigError(key, f"cannot listen on {bind}: {error.strerror}") from error
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, route: bytes, message: Message) -> None:
        try:
            self.socket.send_multipart([route, encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> list[tuple[bytes, AnyMessage]]:
        """All that has come and is understood, without waiting."""
        messages: list[tuple[bytes, AnyMessage]] = []
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            message = _understood(frames[1:])
            if message is not None:
                messages.append((frames[0], message))

    def close(self) -> None:
        self.socket.close()


class Connection:
    """A socket connected to one listener."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.endpoint = endpoint
        self.socket = _tuned(context.socket(zmq.DEALER))
        self.socket.connect(endpoint)

    def send(self, message: Message) -> None:
        """Nothing is sent any more once it is closed."""
        if self.socket.closed:
            return
        try:
            self.socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    def receive(self) -> list[AnyMessage]:
        """All that has come and is understood, without waiting."""
        messages: list[AnyMessage] = []
        while True:
            try:
                message = _understood(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return messages
            if message is not None:
                messages.append(message)

    def close(self) -> None:
        self.socket.close()


class AsyncListener:
    """A Listener for an asyncio loop."""

    def __init__(self, context: zmq.asyncio.Context, bind: str, key: str) -> None:
        self._socket = context.socket(zmq.ROUTER)
        _tuned(self._socket)
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigError(key, f"cannot listen on {bind}: {error.strerror}") from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, route: bytes, message: Message) -> None:
        self._socket.send_multipart([route, encode(message)], flags=zmq.NOBLOCK)

    async def receive(self) -> tuple[bytes, AnyMessage]:
        """The next one that is understood."""
        while True:
            frames = await self._socket.recv_multipart()
            message = _understood(frames[1:])
            if message is not None:
                return frames[0], message

    def close(self) -> None:
        self._socket.close()

"""Messages to bytes and back: msgpack by msgspec."""

from __future__ import annotations

import msgspec

from relevo.errors import RelevoError
from relevo.wire.messages import AnyMessage, Message

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class ProtocolError(RelevoError):
    """Bytes that are no message of this protocol."""


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Raises ProtocolError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a control message: {error}") from error

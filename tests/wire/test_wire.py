import pytest

from relevo.types import Role, Sampling, TimelineEvent
from relevo.wire.codec import ProtocolError, decode, encode
from relevo.wire.liveness import HEARTBEAT_S, SILENCE_S, Liveness
from relevo.wire.messages import (
    Finished,
    Generate,
    Heartbeat,
    PrefillCandidate,
    PrefillRequest,
    Register,
)

MESSAGES = [
    Heartbeat(7),
    Register("w", 2**63 - 1, 1, Role.DECODE, "m", 10, 16, 100, 50, 1, 2, 3),
    Generate("r", 1, (1, 2), Sampling(5, seed=2**63 - 1), (PrefillCandidate("p", "tcp://x"),)),
    PrefillRequest(2**63 - 1, 3, "r", (1, 2, 3), 0, (9,), 4095, 255),
    Finished(1, (TimelineEvent("pushed", 5, "p", {"layers_ns": [1, 2]}),)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_as_they_were(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x81\xa1t\xa3xyz", encode(Heartbeat())[:-1]])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(ProtocolError):
        decode(data)


def test_liveness_beats_at_its_interval_and_notices_silence():
    link = Liveness(heard_at=0.0)
    assert link.due(0.0)
    assert not link.due(HEARTBEAT_S / 2)
    assert link.due(HEARTBEAT_S)
    assert not link.silent(SILENCE_S)
    assert link.silent(SILENCE_S + 0.1)
    link.heard(SILENCE_S)
    assert not link.silent(SILENCE_S + 0.1)

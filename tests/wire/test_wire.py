import pytest

from relevo.types import Role, Sampling, TimelineEvent
from relevo.wire.codec import ProtocolError, decode, encode
from relevo.wire.liveness import HEARTBEAT_S, HUNG_S, SILENCE_S, Liveness
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
    assert link.lost(SILENCE_S) is None
    assert "silent" in link.lost(SILENCE_S + 0.1)
    link.heard(SILENCE_S)
    assert link.lost(SILENCE_S + 0.1) is None


def test_a_busy_worker_is_not_lost_but_one_that_never_ends_its_step_is():
    link = Liveness(heard_at=0.0)
    for second in range(0, int(HUNG_S * 3)):
        link.heard(second)
        link.progress(second, steps=second // 60, busy=True)
        assert link.lost(second) is None
    begin = HUNG_S * 3
    for second in range(int(HUNG_S * 2)):
        link.heard(begin + second)
        link.progress(begin + second, steps=999, busy=True)
        assert (link.lost(begin + second) is not None) == (second > HUNG_S)
    link.progress(begin * 2, steps=999, busy=False)
    link.heard(begin * 2)
    assert link.lost(begin * 2) is None, "idle is not hung"

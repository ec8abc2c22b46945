import pytest

from relevo.errors import ConfigError
from relevo.wire.unreliable import ControlFaults
from relevo.worker.faults import WorkerFaults, parse_faults


def test_no_spec_is_no_fault():
    assert parse_faults("") == WorkerFaults(None, None)


def test_writes_and_messages_share_a_seed():
    faults = parse_faults("seed=7,cut=0.5,lose=0.25,late=1")
    assert faults.messages == ControlFaults(7, lose=0.25, repeat=0, late=1)
    assert faults.writes is not None
    assert faults.slow == 0


def test_steps_can_be_slow_and_links_too():
    assert parse_faults("slow=0.2").slow == 0.2
    assert parse_faults("rate=8").writes is not None


@pytest.mark.parametrize(
    "spec",
    ["eror=0.1", "error", "error=often", "error=2", "delay=-1", "lose=nan", "seed=inf", "slow=2"],
)
def test_a_wrong_spec_says_what_would_be_right(spec):
    with pytest.raises(ConfigError, match="faults"):
        parse_faults(spec)

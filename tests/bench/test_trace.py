import pytest

from relevo.bench.trace import Arrival, Segment, Trace, gap_cv
from relevo.errors import ConfigError

THREE = Trace(
    "three",
    (
        Arrival(0.0, (Segment(1, 512), Segment(2, 100)), 10),
        Arrival(1.0, (Segment(1, 512), Segment(3, 50)), 300),
        Arrival(4.0, (Segment(4, 8),), 2),
    ),
    span_s=6.0,
)


def test_a_trace_is_the_same_bytes_again():
    again = Trace.from_bytes(THREE.to_bytes())
    assert again == THREE
    assert again.digest == THREE.digest
    assert THREE.scaled_rate(1.001).digest != THREE.digest


def test_rates_and_times_scale_together():
    fast = THREE.scaled_rate(2)
    assert [a.at_s for a in fast.arrivals] == [0.0, 0.5, 2.0]
    assert fast.rate == pytest.approx(1.0)
    assert THREE.rate == pytest.approx(0.5)


def test_scaled_prompts_still_begin_alike():
    first, second, third = THREE.scaled_lengths(0.25).arrivals
    assert first.prompt == (Segment(1, 128), Segment(2, 25))
    assert second.prompt[0] == first.prompt[0]
    assert third.output_tokens == 1  # never none


def test_a_window_begins_at_its_own_zero():
    cut = THREE.window(1.0, 5.0)
    assert [a.at_s for a in cut.arrivals] == [0.0, 3.0]
    assert cut.span_s == 4.0
    with pytest.raises(ConfigError, match="no request arrives from 10 to 20 s"):
        THREE.window(10, 20)


def test_what_does_not_fit_a_context_is_cut_from_the_end_and_noted():
    fitted = THREE.fitted(400)
    first, second, third = fitted.arrivals
    assert (first.prompt, first.output_tokens) == ((Segment(1, 390),), 10)
    assert (second.prompt_tokens, second.output_tokens) == (200, 200)
    assert third == THREE.arrivals[2]
    assert fitted.notes == ("2 of 3 requests cut to a context of 400 tokens",)
    assert THREE.fitted(4096).notes == ()


def test_thinning_and_jitter_follow_from_their_seed():
    many = Trace("many", tuple(Arrival(float(i), (Segment(i, 9),), 9) for i in range(999)), 999.0)
    assert many.thinned(0.3, 1) == many.thinned(0.3, 1) != many.thinned(0.3, 2)
    assert 200 < len(many.thinned(0.3, 1).arrivals) < 400
    times = [a.at_s for a in many.jittered(3.0, 1).arrivals]
    assert times == sorted(times) != [a.at_s for a in many.arrivals]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_a_factor_that_makes_no_sense_is_refused(bad):
    with pytest.raises(ConfigError, match="rate-scale"):
        THREE.scaled_rate(bad)
    with pytest.raises(ConfigError, match="length-scale"):
        THREE.scaled_lengths(bad)


def test_gap_cv():
    assert gap_cv(THREE) == pytest.approx(0.5)  # gaps 1 and 3

import statistics
from itertools import pairwise

import pytest

from relevo.bench.prompts import PromptMaker
from relevo.bench.trace import Arrival, Segment
from relevo.bench.workloads import WORKLOADS, Process, make_closed_loop, make_workload
from relevo.errors import ConfigError


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_makes_the_same_bytes(name):
    first, again, other = (make_workload(name, Process(5), 60, seed) for seed in (1, 1, 2))
    assert first.to_bytes() == again.to_bytes() != other.to_bytes()
    assert all(0 <= a.at_s < 60 for a in first.arrivals)
    assert all(a.prompt_tokens >= 1 and a.output_tokens >= 1 for a in first.arrivals)


@pytest.mark.parametrize("cv", [0.0, 1.0, 4.0])
def test_gaps_have_the_wanted_spread(cv):
    trace = make_workload("short", Process(10, cv), 2000, 3)
    gaps = [b.at_s - a.at_s for a, b in pairwise(trace.arrivals)]
    assert trace.rate == pytest.approx(10, rel=0.15)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.1, abs=0.01)


def test_lengths_do_not_depend_on_when_requests_come():
    slow, fast = (make_workload("mixed", Process(2, cv), 100, 1).arrivals for cv in (0, 3))
    n = min(len(slow), len(fast))
    assert [a.prompt for a in slow[:n]] == [a.prompt for a in fast[:n]]


def test_turns_of_a_chat_go_on_from_those_before():
    trace = make_workload("chat", Process(2), 60, 1)
    known = {a.prompt for a in trace.arrivals}
    later = [a for a in trace.arrivals if len(a.prompt) > 2]
    assert later
    assert all(a.prompt[:-2] in known for a in later)


def test_a_closed_loop_has_no_rate():
    trace = make_closed_loop("short", 4, 10, 1)
    assert (trace.concurrency, len(trace.arrivals), trace.rate) == (4, 10, 0.0)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: make_workload("shrt", Process(1), 10, 0), "workload"),
        (lambda: make_workload("short", Process(0), 10, 0), "rate"),
        (lambda: make_workload("short", Process(1, -1), 10, 0), "cv"),
        (lambda: make_workload("short", Process(1), 0, 0), "duration"),
        (lambda: make_workload("short", Process(0.01, 0), 10, 0), "rate"),
        (lambda: make_closed_loop("chat", 1, 1, 0), "concurrency"),
        (lambda: make_closed_loop("short", 0, 1, 0), "concurrency"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(make, key):
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.key == key


def test_equal_segments_are_equal_tokens_whatever_their_length():
    prompt = PromptMaker(30_000)
    long, short = (prompt(Arrival(0, (Segment(7, n),), 1)) for n in (700, 33))
    assert long[:33] == short
    assert prompt(Arrival(0, (Segment(8, 33),), 1)) != short
    assert PromptMaker(30_000, salt=1)(Arrival(0, (Segment(7, 33),), 1)) != short
    assert all(1_000 <= token < 30_000 for token in long)
    assert all(32 <= t < 64 for t in PromptMaker(64)(Arrival(0, (Segment(7, 99),), 1)))


@pytest.mark.parametrize(("rate", "span"), [(1.3, 8.0), (20.0, 60.0), (0.2, 10.0)])
def test_a_short_trace_too_has_the_load_that_was_asked_for(rate, span):
    for seed in range(20):
        trace = make_workload("mixed", Process(rate), span, seed)
        assert len(trace.arrivals) == round(rate * span)
        assert all(0 < a.at_s < span for a in trace.arrivals)

"""Figures against values computed by hand, on recorded streams."""

import json

import pytest

from relevo.bench.metrics import SAMPLES, Budgets, attainment, goodput, rates, validity
from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.streams import read_stream

BUDGETS = Budgets(ttft_ms=100, tpot_ms=20, itl_p99_ms=50)


def row(index=0, *, sent=0.0, arrivals=(), chunks=(), outcome="ok", prompt=10, scheduled=None):
    return RequestRow(
        index=index, scheduled_ms=sent if scheduled is None else scheduled, sent_ms=sent,
        outcome=outcome, prompt_tokens=prompt, wanted_tokens=4, arrivals_ms=tuple(arrivals),
        chunk_tokens=tuple(chunks),
    )  # fmt: skip


def run_of(*rows, span=10.0, lag=1.0):
    return LoadRun("digest", 0, span, span, lag, 0.1, tuple(rows))


def stamped(*chunks):
    """Each 10 ms after the one before."""
    return [(10_000_000 * i, b"data: " + json.dumps(c).encode()) for i, c in enumerate(chunks)]


def text(content, finish=None, **more):
    return {"id": "r", "choices": [{"index": 0, "text": content, "finish_reason": finish, **more}]}


def test_a_stream_with_one_token_a_chunk():
    seen = read_stream(stamped(text("a"), text("b"), text("c", "length")))
    assert (seen.arrivals_ns, seen.counts) == ([0, 10_000_000, 20_000_000], [1, 1, 1])
    assert (seen.id, seen.finished, seen.error) == ("r", True, "")


def test_chunks_without_a_token_do_not_count():
    role = {"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    word = {"id": "r", "choices": [{"index": 0, "delta": {"content": "hi"}}]}
    end = {"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"id": "r", "choices": [], "usage": {"completion_tokens": 1}}
    seen = read_stream(stamped(role, word, end, usage))
    assert (seen.arrivals_ns, seen.counts, seen.finished) == ([10_000_000], [1], True)


def test_token_ids_say_how_many_a_chunk_carries_even_without_text():
    seen = read_stream(
        stamped(
            text("", token_ids=[5]), text("ab", token_ids=[6, 7, 8]), text("", "stop", token_ids=[])
        )
    )
    assert seen.counts == [1, 3]


def test_usage_tells_of_tokens_that_chunks_do_not_show():
    usage = {"id": "r", "choices": [], "usage": {"completion_tokens": 5}}
    seen = read_stream(stamped(text("ab"), text("cd", "length"), usage))
    assert seen.counts == [3, 2]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'data: {"error": {"message": "out of pages"}}', "out of pages"),
        (b"data: {oops", "a chunk is not JSON: b'{oops'"),
    ],
)
def test_an_error_within_a_stream_is_the_requests(line, error):
    assert read_stream([*stamped(text("a")), (9, line)]).error == error


def test_figures_of_one_request():
    r = row(sent=100, arrivals=(150, 160, 200, 205), chunks=(1, 1, 2, 1))
    assert r.tokens == 5
    assert r.ttft_ms == 50
    assert r.e2e_ms == 105
    assert r.tpot_ms == pytest.approx(55 / 4)
    assert r.gaps_ms() == [10, 40, 0, 5]


def test_a_one_token_answer_has_no_tpot_and_counts_by_its_ttft():
    good, late = row(arrivals=(99,)), row(arrivals=(101,))
    assert good.tpot_ms is None
    assert SAMPLES["tpot_ms"]([good, row(arrivals=(10, 20))]) == [10]
    assert (BUDGETS.met(good), BUDGETS.met(late)) == (True, False)


@pytest.mark.parametrize(
    ("arrivals", "met"),
    [
        ((100, 120, 140), True),
        ((101, 121, 141), False),  # TTFT
        ((100, 121, 142), False),  # TPOT
        ((10, 20, 75, 76), False),  # TPOT 22
        ((10, 11, 12, 13, 14, 70), False),  # TPOT 12, but a gap of 56
    ],
)
def test_all_budgets_must_be_met(arrivals, met):
    assert BUDGETS.met(row(arrivals=arrivals)) is met
    assert BUDGETS.met(row(arrivals=arrivals), scale=2.0)


def test_refused_and_failed_requests_are_misses_among_those_offered():
    rows = (
        row(0, arrivals=(10, 20)),
        row(1, outcome="refused"),
        row(2, arrivals=(10, 20), outcome="failed"),
        row(3, arrivals=(500, 510)),
    )
    run = run_of(*rows)
    assert attainment(rows, BUDGETS) == 0.25
    assert goodput(run, BUDGETS) == 0.1
    figures = rates(run, BUDGETS)
    assert (figures["refused"], figures["failed"], figures["offered_rps"]) == (1, 1, 0.4)
    assert figures["output_tokens_per_s"] == pytest.approx(6 / 0.51)
    assert figures["prompt_tokens_per_s"] == pytest.approx(20 / 0.51)
    assert SAMPLES["ttft_ms"](rows) == [10, 500]  # of answered requests only


def test_a_generator_that_sends_late_makes_the_run_invalid():
    on_time = [row(i, sent=i, arrivals=(i + 5,)) for i in range(100)]
    assert validity(run_of(*on_time)) == []
    late = [row(i, sent=i + 60, scheduled=i, arrivals=(i + 65,)) for i in range(100)]
    assert "60 ms late at p99" in validity(run_of(*late))[0]
    assert validity(run_of(*late), closed=True) == []
    assert "timer ran 30 ms late" in validity(run_of(*on_time, lag=30.0))[0]
    assert "no request was answered" in validity(run_of(row(outcome="refused")))[0]
    assert validity(run_of()) == ["no request was sent"]

import random

import pytest

from relevo.bench.metrics import Budgets
from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.verdict import judge

BUDGETS = Budgets(ttft_ms=100, tpot_ms=20, itl_p99_ms=50)


def replays(seed, *, factor=1.0, met=1.0, rounds=4, requests=30, noise=0.02, outcome="ok"):
    """Each round has its own pace, as machines do, and each request its own."""
    draw = random.Random(seed)
    runs = []
    for r in range(rounds):
        pace = random.Random(r).gauss(1, 0.05) * draw.gauss(1, noise)
        rows = []
        for i in range(requests):
            e2e = random.Random(f"{r}/{i}").uniform(20, 90) * factor * pace * draw.gauss(1, 0.05)
            late = 1000.0 if draw.random() > met else 0.0
            rows.append(
                RequestRow(i, 0.0, 0.0, outcome, 8, 2, (late + e2e / 2, late + e2e / 2 + 9))
            )
        runs.append(LoadRun("t", 0, 10.0, 10.0, 1.0, 0.1, tuple(rows)))
    return runs


def test_more_requests_within_budgets_is_a_yes():
    verdict = judge(
        {"replicas": replays(1, met=0.3), "all": replays(2, met=0.1)},
        {"split": replays(3, met=0.9)}, BUDGETS, [],
    )  # fmt: skip
    assert (verdict.kind, verdict.better) == ("adopt", "split")
    assert verdict.best_colocated == "replicas"
    assert "more requests meet the budgets than with replicas" in verdict.text


def test_fewer_is_a_no_even_when_faster():
    verdict = judge({"c": replays(1)}, {"d": replays(2, met=0.5, factor=0.5)}, BUDGETS, [])
    assert (verdict.kind, verdict.better) == ("stay", "c")


@pytest.mark.parametrize(("factor", "kind"), [(0.8, "adopt"), (1.25, "stay")])
def test_latency_decides_where_budgets_do_not(factor, kind):
    verdict = judge({"c": replays(1)}, {"d": replays(2, factor=factor)}, BUDGETS, [])
    assert verdict.kind == kind
    assert "% latency" in verdict.text


def test_like_with_like_is_rarely_told_apart():
    kinds = [
        judge(
            {"c": replays(2 * i, noise=0.1)}, {"d": replays(2 * i + 1, noise=0.1)}, BUDGETS, []
        ).kind
        for i in range(200)
    ]
    assert kinds.count("no-difference") >= 190


def test_no_difference_says_what_would_have_been_one():
    verdict = judge({"c": replays(5)}, {"d": replays(6)}, BUDGETS, [])
    assert "they would have shown" in verdict.text
    assert all(d.detectable and d.detectable > 0 for d in verdict.differences)


def test_a_form_that_is_as_good_but_slow_is_not_the_best():
    """One request within budgets more does not outweigh latency."""
    fast, slow = replays(1, factor=0.6, met=0.98), replays(2, factor=1.0)
    verdict = judge({"fast": fast, "slow": slow}, {"d": replays(3, factor=0.8)}, BUDGETS, [])
    assert (verdict.kind, verdict.best_colocated) == ("stay", "fast")


def test_one_round_shows_nothing():
    verdict = judge({"c": replays(1, rounds=1)}, {"d": replays(2, rounds=1, met=0)}, BUDGETS, [])
    assert verdict.kind == "no-difference"
    assert "nor any; it takes more rounds" in verdict.text


def test_no_difference_promises_nothing_beyond_reason():
    """Two rounds that disagree say nothing of attainment, whose differences end at 100 points."""
    apart = replays(2, rounds=1, met=0) + replays(3, rounds=1, met=1)
    verdict = judge({"c": replays(1, rounds=2)}, {"d": apart}, BUDGETS, [])
    assert verdict.differences[0].detectable > 1
    assert "points" not in verdict.text


def test_nothing_answered_is_no_latency():
    failed = replays(2, outcome="failed")
    verdict = judge({"c": replays(1)}, {"d": failed}, BUDGETS, [])
    assert verdict.kind == "stay"
    assert verdict.differences[1].low is None


def test_invalid_runs_are_not_judged():
    verdict = judge({"c": replays(1)}, {"d": replays(2, met=0)}, BUDGETS, ["c, round 1: late"])
    assert (verdict.kind, verdict.better, verdict.differences) == ("invalid", "", ())
    assert "c, round 1: late" in verdict.text

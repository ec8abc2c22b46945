"""Whether disaggregation pays: pure arithmetic over the replays of both sides.

The best architecture of each side is taken: the most requests within budgets, then the least
latency. Two measures are looked at: the attainment of the budgets, and the latency, the mean over
requests of ln E2E; how their differences are judged is in `differences`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from relevo.bench.differences import Difference, attainment_table, difference, latency_table
from relevo.bench.metrics import Budgets, attainment
from relevo.bench.rows import LoadRun

ADOPT, STAY, NONE, INVALID = "adopt", "stay", "no-difference", "invalid"
ATTAINMENT_MARGIN = 0.03
LATENCY_MARGIN = math.log(1.05)


class Verdict(msgspec.Struct, frozen=True):
    """`better`: the architecture to use; empty where none is shown to be better."""

    kind: str
    better: str
    text: str
    differences: tuple[Difference, ...]
    best_colocated: str
    best_disaggregated: str


def judge(
    colocated: Mapping[str, Sequence[LoadRun]],
    disaggregated: Mapping[str, Sequence[LoadRun]],
    budgets: Budgets,
    invalid: Sequence[str],
) -> Verdict:
    """By architecture its replays, one a round. `invalid`: why these runs cannot be judged."""
    if invalid:
        return Verdict(INVALID, "", "the runs are invalid: " + "; ".join(invalid), (), "", "")
    best_c, best_d = best(colocated, budgets), best(disaggregated, budgets)
    runs = {**colocated, **disaggregated}
    attained = difference(
        "attainment", attainment_table(runs, budgets), best_d, best_c, ATTAINMENT_MARGIN
    )
    latency = difference("latency", latency_table(runs), best_d, best_c, LATENCY_MARGIN)
    both = (attained, latency)
    if attained.shown:
        kind, why = (ADOPT if attained.value > 0 else STAY), "more requests meet the budgets"
    elif latency.shown:
        kind, why = (ADOPT if latency.value < 0 else STAY), "answers come sooner"
    else:
        return Verdict(NONE, "", _no_difference(both), both, best_c, best_d)
    better, other = (best_d, best_c) if kind == ADOPT else (best_c, best_d)
    say = "adopt disaggregation" if kind == ADOPT else "stay co-located"
    found = attained if attained.shown else latency
    text = f"{say}: {better}; {why} than with {other} (disaggregated: {found.in_words})"
    return Verdict(kind, better, text, both, best_c, best_d)


def _no_difference(differences: Sequence[Difference]) -> str:
    text = "no difference that these runs can show"
    attained, latency = (d.detectable for d in differences)
    if attained is None or latency is None:
        return text + "; one round shows none, whatever its size"
    return (
        f"{text}; they would have shown {attained * 100:.1f} points of attainment or "
        f"{math.expm1(latency) * 100:.0f} % of latency"
    )


def best(runs: Mapping[str, Sequence[LoadRun]], budgets: Budgets) -> str:
    """The most requests within budgets; then the least mean of ln E2E."""

    def rank(name: str) -> tuple[float, float]:
        rows = [row for run in runs[name] for row in run.rows]
        logs = [math.log(row.e2e_ms) for row in rows if row.ok and row.e2e_ms]
        return -attainment(rows, budgets), sum(logs) / len(logs) if logs else math.inf

    return min(runs, key=rank)

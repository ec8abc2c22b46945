"""Whether disaggregation pays: pure arithmetic over the replays of both sides.

The best architecture of each side is taken: of those whose attainment of the budgets is within a
margin of the side's highest, the one of least latency. Two differences between them are looked at:
of attainment, and of latency, the mean over requests of ln E2E; how they are judged is in
`differences`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from relevo.bench.differences import Difference, attained, judged, latencies
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
    pair = disaggregated[best_d], colocated[best_c]
    attainments = judged("attainment", attained(*pair, budgets), ATTAINMENT_MARGIN)
    latency = judged("latency", latencies(*pair), LATENCY_MARGIN)
    both = (attainments, latency)
    if attainments.shown:
        kind, why = (ADOPT if attainments.value > 0 else STAY), "more requests meet the budgets"
    elif latency.shown:
        kind, why = (ADOPT if latency.value < 0 else STAY), "answers come sooner"
    else:
        return Verdict(NONE, "", _no_difference(both), both, best_c, best_d)
    better, other = (best_d, best_c) if kind == ADOPT else (best_c, best_d)
    say = "adopt disaggregation" if kind == ADOPT else "stay co-located"
    found = attainments if attainments.shown else latency
    text = f"{say}: {better}; {why} than with {other} (disaggregated: {found.in_words})"
    return Verdict(kind, better, text, both, best_c, best_d)


def _no_difference(differences: Sequence[Difference]) -> str:
    text = "no difference that these runs can show"
    attainments, latency = (d.detectable for d in differences)
    would = []
    if attainments is not None and attainments < 1:
        would.append(f"{attainments * 100:.1f} points of attainment")
    if latency is not None and latency < math.log(2):
        would.append(f"{math.expm1(latency) * 100:.0f} % of latency")
    if not would:
        return f"{text}, nor any; it takes more rounds, or more requests in each"
    return f"{text}; they would have shown one measured above {' or '.join(would)}"


def best(runs: Mapping[str, Sequence[LoadRun]], budgets: Budgets) -> str:
    """Of those within the margin of the highest attainment, the one of the least mean ln E2E."""
    rows = {name: [row for run in mine for row in run.rows] for name, mine in runs.items()}
    attainments = {name: attainment(mine, budgets) for name, mine in rows.items()}
    highest = max(attainments.values())

    def latency(name: str) -> float:
        logs = [math.log(row.e2e_ms) for row in rows[name] if row.ok and row.e2e_ms]
        return sum(logs) / len(logs) if logs else math.inf

    return min((n for n in runs if attainments[n] >= highest - ATTAINMENT_MARGIN), key=latency)

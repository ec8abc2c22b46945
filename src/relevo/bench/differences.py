"""The difference between two architectures, and whether it is more than noise.

Both replay the same arrivals in every round, so their difference within each round is one
observation, and Student's t over rounds judges it; where the scatter of the single requests'
differences is greater than that of the rounds', that counts. At 97.5 %, so that two measures
together are wrong in at most 5 of 100 comparisons of like with like. A difference below its margin
is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from relevo.bench.metrics import Budgets, attainment
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import student_t


class Difference(msgspec.Struct, frozen=True):
    """Disaggregated less co-located. `attainment`: shares of all requests; `latency`: ln of a
    ratio. `detectable`: a measured difference above it would have been shown."""

    measure: str
    value: float
    low: float | None
    high: float | None
    detectable: float | None
    shown: bool

    @property
    def in_words(self) -> str:
        if self.measure == "attainment":
            return f"{self.value * 100:+.1f} points of attainment"
        return f"{math.expm1(self.value) * 100:+.1f} % latency"


class Paired(NamedTuple):
    """A measure's differences: by round the means', and each request's own."""

    rounds: list[float]
    requests: list[float]


def attained(first: Sequence[LoadRun], second: Sequence[LoadRun], budgets: Budgets) -> Paired:
    """Of shares of the requests offered."""
    paired = Paired([], [])
    for mine, theirs in zip(first, second, strict=True):
        paired.rounds.append(attainment(mine.rows, budgets) - attainment(theirs.rows, budgets))
        met = {row.index: budgets.met(row) for row in theirs.rows}
        paired.requests.extend(budgets.met(r) - met.get(r.index, False) for r in mine.rows)
    return paired


def latencies(first: Sequence[LoadRun], second: Sequence[LoadRun]) -> Paired:
    """Of ln E2E, over the requests that both have answered."""
    paired = Paired([], [])
    for mine, theirs in zip(first, second, strict=True):
        other = {row.index: row.e2e_ms for row in theirs.rows if row.ok}
        logs = [
            math.log(e2e / e2e_there)
            for row in mine.rows
            if row.ok and (e2e := row.e2e_ms) and (e2e_there := other.get(row.index))
        ]
        if logs:
            paired.rounds.append(math.fsum(logs) / len(logs))
            paired.requests.extend(logs)
    return paired


def judged(measure: str, paired: Paired, margin: float) -> Difference:
    """With fewer than two rounds nothing is shown."""
    n = len(paired.rounds)
    if n < 2:
        value = paired.rounds[0] if n else 0.0
        return Difference(measure, round(value, 6), None, None, None, False)
    value = math.fsum(paired.rounds) / n
    by_round = statistics.stdev(paired.rounds) / math.sqrt(n)
    many = len(paired.requests)
    by_request = statistics.stdev(paired.requests) / math.sqrt(many) if many > 1 else 0.0
    half = student_t(n - 1) * max(by_round, by_request)
    shown = abs(value) >= margin and abs(value) > half
    low, high = round(value - half, 6), round(value + half, 6)
    return Difference(measure, round(value, 6), low, high, round(max(margin, half), 6), shown)

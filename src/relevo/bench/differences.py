"""Differences between architectures, and whether they are more than noise.

Every architecture replays the same arrivals in every round, so a measure is a table of
architectures by rounds (randomised blocks, after Fisher): what the means of both leave unexplained
is noise. A difference is judged against that noise, or against the scatter of the single requests'
differences, whichever is greater, by Student's t at 97.5 %: two measures together are then wrong in
at most 5 of 100 comparisons of like with like. A difference below its margin is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from relevo.bench.metrics import Budgets, attainment
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import student_t


class Difference(msgspec.Struct, frozen=True):
    """Disaggregated less co-located. `attainment`: shares of all requests; `latency`: ln of a
    ratio. `detectable`: the least difference that these rounds could have shown."""

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


class Table(NamedTuple):
    """A measure of all architectures: `values[name][round]` is the mean over requests, and
    `rows[name]` each request's own, in one order for all."""

    values: dict[str, list[float]]
    rows: dict[str, list[float]]


def attainment_table(runs: Mapping[str, Sequence[LoadRun]], budgets: Budgets) -> Table:
    values = {name: [attainment(run.rows, budgets) for run in mine] for name, mine in runs.items()}
    rows = {
        name: [float(budgets.met(row)) for run in mine for row in run.rows]
        for name, mine in runs.items()
    }
    return Table(values, rows)


def latency_table(runs: Mapping[str, Sequence[LoadRun]]) -> Table | None:
    """Of the requests that all have answered. None where a round has none."""
    table = Table({name: [] for name in runs}, {name: [] for name in runs})
    for together in zip(*runs.values(), strict=True):
        e2e = [{row.index: row.e2e_ms for row in run.rows if row.ok} for run in together]
        common = [index for index in e2e[0] if all(answered.get(index) for answered in e2e)]
        if not common:
            return None
        for name, mine in zip(runs, e2e, strict=True):
            logs = [math.log(mine[index] or 1.0) for index in common]
            table.values[name].append(math.fsum(logs) / len(logs))
            table.rows[name].extend(logs)
    return table


def difference(
    measure: str, table: Table | None, first: str, second: str, margin: float
) -> Difference:
    """Of the first architecture less the second."""
    if table is None:
        return Difference(measure, 0.0, None, None, None, False)
    mine, theirs = table.values[first], table.values[second]
    value = (math.fsum(mine) - math.fsum(theirs)) / len(mine)
    if len(mine) < 2:
        return Difference(measure, value, None, None, None, False)
    noise, freedom = block_noise(list(table.values.values()))
    by_round = noise * math.sqrt(2 / len(mine))
    single = [a - b for a, b in zip(table.rows[first], table.rows[second], strict=True)]
    by_request = statistics.stdev(single) / math.sqrt(len(single)) if len(single) > 1 else 0.0
    half = student_t(freedom) * max(by_round, by_request)
    shown = abs(value) >= margin and abs(value) > half
    return Difference(measure, value, value - half, value + half, max(margin, half), shown)


def block_noise(values: Sequence[Sequence[float]]) -> tuple[float, int]:
    """(standard deviation of what neither architecture nor round explains, degrees of freedom), of
    at least two of each."""
    rounds, names = len(values[0]), len(values)
    of_name = [math.fsum(row) / rounds for row in values]
    of_round = [math.fsum(row[r] for row in values) / names for r in range(rounds)]
    mean = math.fsum(of_name) / names
    rest = math.fsum(
        (values[n][r] - of_name[n] - of_round[r] + mean) ** 2
        for n in range(names)
        for r in range(rounds)
    )
    freedom = (rounds - 1) * (names - 1)
    return math.sqrt(rest / freedom), freedom

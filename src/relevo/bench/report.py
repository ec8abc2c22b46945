"""A comparison's report as data: what was run, every request's row, and what follows from them.
`conclude` computes all that follows; `relevo bench verify` calls it again on the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from relevo.bench.differences import Difference
from relevo.bench.energy import Energy
from relevo.bench.metrics import SAMPLES, Budgets, group_of, rates
from relevo.bench.processes import ProcessUse
from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.statistics import Interval, resampled
from relevo.bench.verdict import Verdict, judge
from relevo.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
SCHEMA = 1
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
GROUPS = ("all", "short", "middle", "long")


class Replay(msgspec.Struct, frozen=True):
    """One replay by one architecture. `load`: the factor on the trace's rate. `invalid`: why it
    does not count. `digest`: of the rows."""

    architecture: str
    round: int
    load: float
    invalid: tuple[str, ...]
    run: LoadRun
    digest: str
    processes: tuple[ProcessUse, ...] = ()
    duplicated_mib: float | None = None
    energy: Energy = Energy(None, "unavailable")


class Sample(msgspec.Struct, frozen=True):
    """Percentiles of `n` values with their intervals; None where there are none."""

    n: int
    percentiles: dict[str, Interval]


class Summary(msgspec.Struct, frozen=True):
    """Of one architecture at one load. `samples`: by group of prompts, then by figure."""

    architecture: str
    load: float
    rates: dict[str, Interval]
    samples: dict[str, dict[str, Sample]]
    resources: dict[str, float | None]


class Tuning(msgspec.Struct, frozen=True):
    """One candidate that was tried briefly."""

    form: str
    architecture: str
    attainment: float
    e2e_p50_ms: float | None
    taken: bool


class Recovery(msgspec.Struct, frozen=True):
    """A worker was killed in mid-replay. `until_good_s`: from then until requests meet the budgets
    again as often as before; None: not within the replay. `lost`: requests that failed."""

    architecture: str
    killed: str
    at_s: float
    until_good_s: float | None
    lost: int
    run: LoadRun


class TraceInfo(msgspec.Struct, frozen=True):
    name: str
    digest: str
    requests: int
    span_s: float
    rate: float
    concurrency: int | None
    gap_cv: float
    prompt_tokens_p50: float
    output_tokens_p50: float
    notes: tuple[str, ...]


class Setup(msgspec.Struct, frozen=True):
    """All that the runs depend on."""

    model: str
    created: str
    machine: dict[str, str | int]
    settings: dict[str, str | int | float]
    architectures: dict[str, dict[str, str | int]]
    budgets: Budgets
    trace: TraceInfo
    assumptions: tuple[str, ...]


class Conclusion(msgspec.Struct, frozen=True):
    """What follows from the replays."""

    valid: bool
    verdict: Verdict
    summaries: tuple[Summary, ...]


class Report(msgspec.Struct, frozen=True):
    """`verdict`: adopt, stay, no-difference or invalid."""

    schema: int
    valid: bool
    verdict: str
    better: str
    text: str
    reasons: tuple[str, ...]
    would_change: tuple[str, ...]
    differences: tuple[Difference, ...]
    best: dict[str, str]
    setup: Setup
    formulas: dict[str, str]
    interference: tuple[dict[str, str | float | int], ...]
    tuning: tuple[Tuning, ...]
    summaries: tuple[Summary, ...]
    recovery: tuple[Recovery, ...]
    replays: tuple[Replay, ...]

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)


def load_report(path: Path) -> Report:
    """Raises ConfigError, saying what is wrong with the file."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise ConfigError("report", f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError("report", f"{path}: not a report of relevo bench: {error}") from error
    if report.schema != SCHEMA:
        raise ConfigError("report", f"{path}: schema {report.schema}, this reads {SCHEMA}")
    return report


def conclude(setup: Setup, replays: Sequence[Replay]) -> Conclusion:
    """Summaries of all, and the verdict on those at load 1."""
    keys = list(dict.fromkeys((r.architecture, r.load) for r in replays))
    summaries = tuple(
        _summarise(
            name, load, setup.budgets,
            [r for r in replays if (r.architecture, r.load) == (name, load)],
        )
        for name, load in keys
    )  # fmt: skip
    judged = [r for r in replays if r.load == 1]
    invalid = [
        f"{r.architecture}, round {r.round + 1}: {reason}" for r in judged for reason in r.invalid
    ]
    sides: dict[str, dict[str, list[LoadRun]]] = {"colocated": {}, "disaggregated": {}}
    for replay in sorted(judged, key=lambda r: r.round):
        side = str(setup.architectures[replay.architecture]["side"])
        sides[side].setdefault(replay.architecture, []).append(replay.run)
    verdict = judge(sides["colocated"], sides["disaggregated"], setup.budgets, invalid)
    return Conclusion(not invalid, verdict, summaries)


def _summarise(name: str, load: float, budgets: Budgets, replays: Sequence[Replay]) -> Summary:
    by_run = [rates(replay.run, budgets) for replay in replays]
    return Summary(
        architecture=name,
        load=load,
        rates={
            key: _rounded(resampled([run[key] for run in by_run], lambda v: sum(v) / len(v)))
            for key in by_run[0]
        },
        samples={group: _samples(_grouped(replays, group)) for group in GROUPS},
        resources=_resources(replays),
    )


def _grouped(replays: Sequence[Replay], group: str) -> list[list[RequestRow]]:
    return [
        [row for row in replay.run.rows if group in ("all", group_of(row))] for replay in replays
    ]


def _samples(repeats: Sequence[Sequence[RequestRow]]) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for name, values_of in SAMPLES.items():
        values = [np.asarray(values_of(rows)) for rows in repeats]
        full = [v for v in values if v.size]
        if full:
            figures = {key: _rounded(_pooled(full, share)) for key, share in SHARES.items()}
            found[name] = Sample(sum(v.size for v in full), figures)
    return found


def _pooled(repeats: Sequence[FloatArray], share: float) -> Interval:
    """numpy's default is the interpolation of `statistics.percentile`."""
    return resampled(
        repeats, lambda chosen: float(np.percentile(np.concatenate(chosen), share * 100))
    )


def _rounded(interval: Interval) -> Interval:
    return Interval(*(None if v is None else round(v, 4) for v in interval))  # type: ignore[arg-type]


def _resources(replays: Sequence[Replay]) -> dict[str, float | None]:
    """Means over repeats; None: unavailable."""

    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return round(sum(known) / len(known), 3) if known else None

    def total(replay: Replay, field: str) -> float | None:
        return sum(getattr(p, field) for p in replay.processes) if replay.processes else None

    def cores(replay: Replay) -> float | None:
        used = total(replay, "cpu_s")
        return None if used is None else used / replay.run.elapsed_s

    return {
        "pss_mib": mean([total(r, "pss_mib") for r in replays]),
        "peak_mib": mean([total(r, "peak_mib") for r in replays]),
        "duplicated_mib": mean([r.duplicated_mib for r in replays]),
        "cores_used": mean([cores(r) for r in replays]),
        "generator_cores_used": mean([r.run.cpu_s / r.run.elapsed_s for r in replays]),
        "energy_j": mean([r.energy.joules for r in replays]),
    }

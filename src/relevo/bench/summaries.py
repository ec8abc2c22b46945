"""Percentiles and rates of an architecture's replays, with intervals over rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relevo.bench.metrics import SAMPLES, Budgets, group_of, rates
from relevo.bench.report import Replay, Sample, Summary
from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.statistics import Interval, percentile, resampled

FloatArray = npt.NDArray[np.float64]
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
GROUPS = ("all", "short", "middle", "long")


def summarise(name: str, load: float, budgets: Budgets, replays: Sequence[Replay]) -> Summary:
    by_run = [rates(replay.run, budgets) for replay in replays]
    return Summary(
        architecture=name,
        load=load,
        invalid=sum(bool(replay.invalid) for replay in replays),
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


def _late(run: LoadRun) -> float | None:
    return percentile([row.late_ms for row in run.rows], 0.99) if run.rows else None


def _resources(replays: Sequence[Replay]) -> dict[str, float | None]:
    """Means over repeats; None: unavailable."""

    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return round(sum(known) / len(known), 3) if known else None

    def total(replay: Replay, field: str) -> float | None:
        return sum(getattr(p, field) for p in replay.processes) if replay.processes else None

    def cores(replay: Replay) -> float | None:
        used = total(replay, "cpu_s")
        return None if used is None else used / max(replay.run.elapsed_s, 1e-3)

    return {
        "pss_mib": mean([total(r, "pss_mib") for r in replays]),
        "peak_mib": mean([total(r, "peak_mib") for r in replays]),
        "duplicated_mib": mean([r.duplicated_mib for r in replays]),
        "cores_used": mean([cores(r) for r in replays]),
        "generator_cores_used": mean([r.run.cpu_s / max(r.run.elapsed_s, 1e-3) for r in replays]),
        "energy_j": mean([r.energy.joules for r in replays]),
        "late_p99_ms": mean([_late(r.run) for r in replays]),
        "lag_p99_ms": mean([r.run.lag_p99_ms for r in replays]),
    }

"""A comparison's report as data: what was run, every request's row, and what follows from them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from relevo.bench.differences import Difference
from relevo.bench.energy import Energy
from relevo.bench.metrics import Budgets
from relevo.bench.processes import ProcessUse
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import Interval, percentile
from relevo.bench.trace import Trace, gap_cv
from relevo.bench.verdict import Verdict
from relevo.errors import ConfigError

SCHEMA = 1


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
    """Of one architecture at one load. `samples`: by group of prompts, then by figure; `invalid`:
    replays among them that do not count."""

    architecture: str
    load: float
    invalid: int
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
    """A worker was killed in mid-replay, `at_s` after its begin. `until_good_s`: from then until
    requests meet the budgets again as often as before; None: not within the replay. `lost`: how
    many requests failed."""

    architecture: str
    killed: str
    at_s: float
    until_good_s: float | None
    lost: int
    run: LoadRun
    digest: str


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

    @classmethod
    def of(cls, trace: Trace) -> TraceInfo:
        return cls(
            name=trace.name,
            digest=trace.digest,
            requests=len(trace.arrivals),
            span_s=trace.span_s,
            rate=round(trace.rate, 4),
            concurrency=trace.concurrency,
            gap_cv=round(gap_cv(trace), 3),
            prompt_tokens_p50=percentile([a.prompt_tokens for a in trace.arrivals], 0.5),
            output_tokens_p50=percentile([a.output_tokens for a in trace.arrivals], 0.5),
            notes=trace.notes,
        )


class Setup(msgspec.Struct, frozen=True):
    """All that the runs depend on."""

    model: str
    created: str
    machine: dict[str, str | int]
    settings: dict[str, str | int | float | bool | None]
    architectures: dict[str, dict[str, str | int]]
    budgets: Budgets
    trace: TraceInfo
    load_traces: dict[str, str]  # by load: the digest of the trace at it
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

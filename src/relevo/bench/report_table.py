"""Reports and load runs in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from relevo.bench.metrics import SAMPLES, Budgets, rates, validity
from relevo.bench.report import Report, Summary
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import Interval, percentiles
from relevo.bench.trace import Trace

_COLUMNS = (
    ("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("itl_ms", "p99"),
    ("longest_gap_ms", "p99"), ("e2e_ms", "p50"),
)  # fmt: skip


def print_report(report: Report) -> None:
    console = Console()
    budgets, trace = report.setup.budgets, report.setup.trace
    console.print(
        f"{report.setup.model}: {trace.requests} requests in {trace.span_s:g} s ({trace.name}); "
        f"budgets: TTFT {budgets.ttft_ms:g}, TPOT {budgets.tpot_ms:g}, "
        f"ITL p99 {budgets.itl_p99_ms:g} ms"
    )
    table = Table(
        "architecture", "load", "attainment", "goodput/s", *map(" ".join, _COLUMNS), "MiB"
    )
    for summary in report.summaries:
        table.add_row(*_cells(summary))
    console.print(table)
    console.print(f"[bold]{report.text}[/bold]", highlight=False)
    for title, lines in (("why", report.reasons), ("what would change it", report.would_change),
                         ("assumed", report.setup.assumptions)):  # fmt: skip
        if lines:
            console.print(f"{title}:")
            for line in lines:
                console.print(f"  {line}", highlight=False, markup=False)


def _cells(summary: Summary) -> list[str]:
    cells = [
        summary.architecture,
        f"{summary.load:g}",
        f"{summary.rates['attainment'].value:.0%}",
        _interval(summary.rates["goodput_rps"], 2),
    ]
    for figure, share in _COLUMNS:
        sample = summary.samples["all"].get(figure)
        cells.append(_interval(sample.percentiles[share], 0) if sample else "")
    memory = summary.resources["pss_mib"]
    return [*cells, "" if memory is None else f"{memory:.0f}"]


def _interval(interval: Interval, digits: int) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.{digits}f}"
    return f"{interval.value:.{digits}f} ({interval.low:.{digits}f}–{interval.high:.{digits}f})"


def print_reports(reports: Mapping[str, Report]) -> None:
    """One under the other, then what they found side by side."""
    for name, report in reports.items():
        Console().rule(name)
        print_report(report)
    if len(reports) > 1:
        table = Table("report", "model", "cpu", "trace", "verdict", "better")
        for name, report in reports.items():
            setup = report.setup
            table.add_row(
                name, setup.model, str(setup.machine["cpu"]), setup.trace.name, report.verdict,
                report.better,
            )  # fmt: skip
        Console().print(table)
        digests = {report.setup.trace.digest for report in reports.values()}
        if len(digests) > 1:
            Console().print("these reports replayed different traces")


def print_load(
    run: LoadRun, trace: Trace, budgets: tuple[float | None, ...], *, as_json: bool
) -> int:
    """Returns the exit code: 1 for a run that does not count. A budget that is not given is
    always met."""
    given = Budgets(*(float("inf") if value is None else value for value in budgets))
    invalid = validity(run, closed=trace.concurrency is not None)
    samples = {name: percentiles(values(run.rows)) for name, values in SAMPLES.items()}
    found: dict[str, Any] = {
        "valid": not invalid,
        "invalid": invalid,
        "trace": trace.digest,
        "requests": len(run.rows),
        "span_s": run.span_s,
        "late_p99_ms": percentiles([row.late_ms for row in run.rows])["p99"],
        "lag_p99_ms": run.lag_p99_ms,
        "rates": {key: round(value, 4) for key, value in rates(run, given).items()},
        "samples": {name: sample for name, sample in samples.items() if sample["n"]},
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return 1 if invalid else 0
    table = Table("figure", "p50", "p90", "p99", "n")
    for name, sample in samples.items():
        if sample["n"]:
            table.add_row(name, *(str(sample[key]) for key in ("p50", "p90", "p99", "n")))
    Console().print(table)
    for key, value in found["rates"].items():
        print(f"{key}: {value:g}")
    for reason in invalid:
        print(f"relevo: this run does not count: {reason}", file=sys.stderr)
    return 1 if invalid else 0

"""Reports and load runs in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from relevo.bench.metrics import SAMPLES, Budgets, rates, validity
from relevo.bench.output import print_table
from relevo.bench.report import Report, Summary
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import percentiles
from relevo.bench.trace import Trace

_COLUMNS = (
    ("ttft_ms", "p50", "TTFT p50"),
    ("ttft_ms", "p99", "TTFT p99"),
    ("tpot_ms", "p50", "TPOT p50"),
    ("itl_ms", "p99", "ITL p99"),
    ("longest_gap_ms", "p99", "gap p99"),
    ("e2e_ms", "p50", "E2E p50"),
)


def print_report(report: Report) -> None:
    console = Console()
    budgets, trace = report.setup.budgets, report.setup.trace
    console.print(
        f"{report.setup.model}: {trace.requests} requests in {trace.span_s:g} s ({trace.name}); "
        f"budgets: TTFT {budgets.ttft_ms:g}, TPOT {budgets.tpot_ms:g}, "
        f"ITL p99 {budgets.itl_p99_ms:g} ms"
    )
    columns = ["architecture", "load", "in budget", "good /s", *(title for *_, title in _COLUMNS)]
    print_table(columns, [_cells(summary) for summary in report.summaries])
    console.print(f"\n[bold]{report.text}[/bold]\n", highlight=False)
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
        f"{summary.rates['goodput_rps'].value:.2f}",
    ]
    for figure, share, _ in _COLUMNS:
        sample = summary.samples["all"].get(figure)
        cells.append(f"{sample.percentiles[share].value:.0f}" if sample else "")
    return cells


def print_reports(reports: Mapping[str, Report]) -> None:
    """One under the other, then what each found, a line each."""
    for name, report in reports.items():
        Console().rule(name)
        print_report(report)
    if len(reports) > 1:
        Console().rule("together")
        for name, report in reports.items():
            setup = report.setup
            found = f"{report.verdict} {report.better}".rstrip()
            print(f"{name}: {found} ({setup.model}, {setup.trace.name})")
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
    rows = [
        [name, str(s["p50"]), str(s["p90"]), str(s["p99"]), str(s["n"])]
        for name, s in samples.items()
        if s["n"]
    ]
    print_table(("figure", "p50", "p90", "p99", "n"), rows)
    for key, value in found["rates"].items():
        print(f"{key}: {value:g}")
    for reason in invalid:
        print(f"relevo: this run does not count: {reason}", file=sys.stderr)
    return 1 if invalid else 0

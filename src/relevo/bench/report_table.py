"""Reports and load runs in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from relevo.bench.metrics import SAMPLES, Budgets, rates, validity
from relevo.bench.output import print_table
from relevo.bench.overview import OVERVIEW_COLUMNS, overview
from relevo.bench.report import Report
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import percentiles
from relevo.bench.trace import Trace


def print_report(report: Report) -> None:
    console = Console()
    budgets, trace = report.setup.budgets, report.setup.trace
    console.print(
        f"{report.setup.model}: {trace.requests} requests in {trace.span_s:.4g} s ({trace.name}); "
        f"budgets: TTFT {budgets.ttft_ms:g}, TPOT {budgets.tpot_ms:g}, "
        f"ITL p99 {budgets.itl_p99_ms:g} ms"
    )
    print_table(OVERVIEW_COLUMNS, [overview(summary) for summary in report.summaries])
    console.print(f"\n[bold]{report.text}[/bold]\n", highlight=False)
    for title, lines in (("why", report.reasons), ("what would change it", report.would_change),
                         ("assumed", report.setup.assumptions)):  # fmt: skip
        if lines:
            console.print(f"{title}:")
            for line in lines:
                console.print(Padding(Text(line), (0, 0, 0, 2)))


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

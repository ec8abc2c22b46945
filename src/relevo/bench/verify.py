"""`relevo bench verify`: computes again, from the rows, all that a report says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from relevo.bench.conclusion import concluded
from relevo.bench.metrics import validity
from relevo.bench.recovery import recovery_of
from relevo.bench.report import Report, load_report

# What follows from the rows; the words around it may change between versions.
_FOLLOWS = ("valid", "verdict", "better", "differences", "best", "summaries", "recovery")


def contradictions(report: Report) -> list[str]:
    """What does not follow from the rows; empty when all does."""
    found = _of_rows(report)
    try:
        again = concluded(
            report.setup,
            report.replays,
            recovery=[
                recovery_of(r.architecture, r.killed, r.at_s, r.run, report.setup.budgets)
                for r in report.recovery
            ],
        )
    except (ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        return [*found, f"nothing follows from these rows: {error!r}"]
    for name in _FOLLOWS:
        if msgspec.json.encode(getattr(report, name)) != msgspec.json.encode(getattr(again, name)):
            found.append(f"{name}: does not follow from the rows")
    return found


def _of_rows(report: Report) -> list[str]:
    found = []
    closed = report.setup.trace.concurrency is not None
    for replay in report.replays:
        where = f"{replay.architecture}, round {replay.round + 1}, load {replay.load:g}"
        if replay.run.digest != replay.digest:
            found.append(f"{where}: the rows are not those that were recorded")
        if replay.run.rows and tuple(validity(replay.run, closed=closed)) != replay.invalid:
            found.append(f"{where}: said to be {replay.invalid or 'valid'}, which it is not")
        if replay.run.rows and replay.run.trace != report.setup.load_traces.get(f"{replay.load:g}"):
            found.append(f"{where}: another trace was replayed")
    for recovery in report.recovery:
        if recovery.run.digest != recovery.digest:
            found.append(
                f"{recovery.architecture}, loss of a worker: the rows are not those that were "
                "recorded"
            )
    return found


def run_verify(path: Path) -> int:
    """Prints what does not hold. Returns the exit code."""
    report = load_report(path)
    found = contradictions(report)
    for line in found:
        print(f"{path}: {line}")
    if not found:
        rows = sum(len(replay.run.rows) for replay in report.replays)
        print(
            f"{path}: {rows} rows in {len(report.replays)} replays: summaries and verdict "
            f"({report.verdict}) follow from them"
        )
    return 1 if found else 0

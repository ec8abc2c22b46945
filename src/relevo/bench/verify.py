"""`relevo bench verify`: computes again, from the rows, all that a report says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from relevo.bench.compare import conclusive_report
from relevo.bench.metrics import validity
from relevo.bench.report import Report, load_report


def differences(report: Report) -> list[str]:
    """What does not follow from the rows; empty when all does."""
    found = []
    closed = report.setup.trace.concurrency is not None
    for replay in report.replays:
        where = f"{replay.architecture}, round {replay.round + 1}, load {replay.load:g}"
        if replay.run.digest != replay.digest:
            found.append(f"{where}: the rows are not those that were recorded")
        if tuple(validity(replay.run, closed=closed)) != replay.invalid:
            found.append(f"{where}: it is said to be {replay.invalid or 'valid'}, which it is not")
        if replay.load == 1 and replay.round >= 0 and replay.run.trace != report.setup.trace.digest:
            found.append(f"{where}: another trace was replayed")
    again = conclusive_report(
        report.setup,
        report.replays,
        interference=report.interference,
        tuning=report.tuning,
        recovery=report.recovery,
    )
    for field in msgspec.structs.fields(Report):
        said, follows = getattr(report, field.name), getattr(again, field.name)
        if msgspec.json.encode(said) != msgspec.json.encode(follows):
            found.append(f"{field.name}: does not follow from the rows")
    return found


def run_verify(path: Path) -> int:
    """Prints what does not hold. Returns the exit code."""
    report = load_report(path)
    found = differences(report)
    for line in found:
        print(f"{path}: {line}")
    if not found:
        rows = sum(len(replay.run.rows) for replay in report.replays)
        print(
            f"{path}: {rows} rows in {len(report.replays)} replays: summaries and verdict "
            f"({report.verdict}) follow from them"
        )
    return 1 if found else 0

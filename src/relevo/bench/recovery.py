"""What the loss of a worker in mid-replay costs: requests lost, and time until the rest are served
as before."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.bench.metrics import Budgets, attainment
from relevo.bench.report import Recovery
from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.subjects import Bench, Kill, Subject, workers_of
from relevo.bench.trace import Trace

KILL_AT = 0.4  # of the trace's span
WINDOW = 5  # requests in a row


def measure_recovery(subject: Subject, bench: Bench, trace: Trace, budgets: Budgets) -> Recovery:
    """Kills the first worker; nobody starts it again."""
    with subject.started(bench) as running:
        running.warm(256, 2 * len(workers_of(running)), seed=5)
        victim = workers_of(running)[0]
        kill = Kill(victim, running.pids[victim], KILL_AT * trace.span_s + 1.0)
        run = running.replay(trace, round=99, load=1, kill=kill).run
    killed_ns = kill.done_ns or run.begin_ns + int(run.elapsed_s * 1e9)
    at_s = (killed_ns - run.begin_ns) / 1e9
    return Recovery(
        architecture=subject.name,
        killed=victim,
        at_s=round(at_s, 3),
        until_good_s=until_good(run, budgets, at_s),
        lost=sum(not row.ok for row in run.rows),
        run=run,
    )


def until_good(run: LoadRun, budgets: Budgets, killed_s: float) -> float | None:
    """From the kill until WINDOW requests in a row, sent after it, meet the budgets as often as
    those before it did. None: not within the replay."""
    before = [row for row in run.rows if row.sent_ms < killed_s * 1e3]
    after = sorted((r for r in run.rows if r.sent_ms >= killed_s * 1e3), key=lambda r: r.sent_ms)
    wanted = attainment(_done_before(before, killed_s), budgets)
    for first in range(len(after) - WINDOW + 1):
        if attainment(after[first : first + WINDOW], budgets) >= wanted:
            return round(after[first].sent_ms / 1e3 - killed_s, 3)
    return None


def _done_before(rows: Sequence[RequestRow], killed_s: float) -> list[RequestRow]:
    """What was over before the kill; what it hit says nothing of how things were."""
    return [row for row in rows if row.arrivals_ms and row.arrivals_ms[-1] < killed_s * 1e3]

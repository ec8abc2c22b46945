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
GENERATOR_START_S = 1.0  # about how long the load generator takes to begin
WARM_PROMPT = 300  # more than decode workers compute themselves in any candidate


def measure_recovery(
    subject: Subject, bench: Bench, trace: Trace, budgets: Budgets, salt: int
) -> Recovery | None:
    """Kills the first worker; nobody starts it again. None where the replay was over before."""
    with subject.started(bench) as running:
        running.warm(WARM_PROMPT, 2 * len(workers_of(running)), seed=0)
        victim = workers_of(running)[0]
        kill = Kill(victim, running.pids[victim], KILL_AT * trace.span_s + GENERATOR_START_S)
        run = running.replay(trace, round=0, load=1, salt=salt, kill=kill).run
    if kill.done_ns is None or kill.done_ns < run.begin_ns:
        return None
    at_s = round((kill.done_ns - run.begin_ns) / 1e9, 3)
    return recovery_of(subject.name, victim, at_s, run, budgets)


def recovery_of(
    architecture: str, killed: str, at_s: float, run: LoadRun, budgets: Budgets
) -> Recovery:
    """What follows from the rows of a replay in which a worker was killed."""
    return Recovery(
        architecture=architecture,
        killed=killed,
        at_s=at_s,
        until_good_s=until_good(run, budgets, at_s),
        lost=sum(row.outcome == "failed" for row in run.rows),
        run=run,
        digest=run.digest,
    )


def until_good(run: LoadRun, budgets: Budgets, killed_s: float) -> float | None:
    """From the kill until WINDOW requests in a row, sent after it, meet the budgets as often as
    those before it did. None: not within the replay, or they never did."""
    before = [row for row in run.rows if row.sent_ms < killed_s * 1e3]
    after = sorted((r for r in run.rows if r.sent_ms >= killed_s * 1e3), key=lambda r: r.sent_ms)
    wanted = attainment(_done_before(before, killed_s), budgets)
    if wanted == 0:
        return None
    for first in range(len(after) - WINDOW + 1):
        if attainment(after[first : first + WINDOW], budgets) >= wanted:
            return round(after[first].sent_ms / 1e3 - killed_s, 3)
    return None


def _done_before(rows: Sequence[RequestRow], killed_s: float) -> list[RequestRow]:
    """What was over before the kill; what it hit says nothing of how things were."""
    return [row for row in rows if row.arrivals_ms and row.arrivals_ms[-1] < killed_s * 1e3]

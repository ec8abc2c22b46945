"""A small report, computed from made-up rows by the code that computes every report."""

import random

import pytest

from relevo.bench.conclusion import concluded
from relevo.bench.energy import Energy
from relevo.bench.metrics import Budgets, validity
from relevo.bench.processes import ProcessUse
from relevo.bench.recovery import recovery_of
from relevo.bench.report import Replay, Setup, TraceInfo, Tuning
from relevo.bench.rows import LoadRun, RequestRow, ServerFigures
from relevo.bench.workloads import Process, make_workload

TRACE = make_workload("mixed", Process(3), 10, 1)
BUDGETS = Budgets(ttft_ms=400, tpot_ms=30, itl_p99_ms=60)


def made_run(seed, step_ms, trace=TRACE):
    draw = random.Random(seed)
    rows = []
    for index, arrival in enumerate(trace.arrivals):
        sent = arrival.at_s * 1e3 + draw.random()
        times = [sent + arrival.prompt_tokens * draw.uniform(0.4, 0.6) + 20]
        while len(times) < arrival.output_tokens:
            times.append(times[-1] + step_ms * draw.uniform(0.8, 1.3))
        rows.append(
            RequestRow(
                index, round(arrival.at_s * 1e3, 3), round(sent, 3), "ok", arrival.prompt_tokens,
                arrival.output_tokens, tuple(round(t, 3) for t in times), id=f"r{index}",
                server=ServerFigures(1.5, 200.0, 90.0, 0.4, 7 << 20, "prefill-0", "decode-0"),
            )
        )  # fmt: skip
    return LoadRun(trace.digest, 0, trace.span_s, 11.0, 1.2, 0.2, tuple(rows))


def made_report():
    subjects = {"replicas-whole": ("colocated", 40.0), "disaggregated-1:1": ("disaggregated", 15.0)}
    replays = []
    for round in range(3):
        for name, (_, step) in subjects.items():
            run = made_run(round * 10 + len(name), step)
            used = (ProcessUse("router", 60.0, 80.0, 0.5), ProcessUse("w", 300.0, 350.0, 9.0))
            replays.append(
                Replay(name, round, 1, tuple(validity(run)), run, run.digest, used, 0.0,
                       Energy(None, "unavailable (none here)"))
            )  # fmt: skip
    faster = TRACE.scaled_rate(1.5)
    for name, (_, step) in subjects.items():
        run = made_run(7, step * 1.2, faster)
        replays.append(Replay(name, 51, 1.5, (), run, run.digest))
    lost = made_run(99, 20.0)
    recovery = recovery_of("disaggregated-1:1", "prefill-0", 4.0, lost, BUDGETS)
    setup = Setup(
        model="SmolLM2 <135M>",
        created="2026-11-30T00:00:00+00:00",
        machine={"cpu": "some", "cores": 2},
        settings={"devices": 2, "rounds": 3},
        architectures={n: {"side": side, "mixed_workers": 2} for n, (side, _) in subjects.items()},
        budgets=BUDGETS,
        trace=TraceInfo.of(TRACE),
        load_traces={"1": TRACE.digest, "1.5": faster.digest},
        assumptions=("the load generator shares all cores",),
    )
    return concluded(
        setup, replays, tuning=[Tuning("disaggregated", "disaggregated-1:1", 1.0, 800.0, True)],
        recovery=[recovery],
        interference=[{"architecture": "replicas-whole", "alone_step_ms": 12.0}],
    )  # fmt: skip


@pytest.fixture(scope="session")
def report():
    return made_report()

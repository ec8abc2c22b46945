"""Whether `relevo bench compare` says yes, no and "no difference" when it should, on SmolLM2 and
two devices of one core.

    .venv/bin/python benchmarks/verdicts.py yes short link one-device  # minutes each
    .venv/bin/python benchmarks/verdicts.py same --times 20            # A/A, a minute each
    .venv/bin/python benchmarks/verdicts.py slow --times 10            # 20 % slower steps in one

A line per comparison; with --out the reports too.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from relevo.bench.architectures import FORMS, Devices, EngineOptions, replicas
from relevo.bench.calibrate import Pace, rate_for
from relevo.bench.compare import Comparison
from relevo.bench.metrics import Budgets
from relevo.bench.plan import Plan
from relevo.bench.report import Report
from relevo.bench.report_html import write_html
from relevo.bench.subjects import Bench, Endpoint
from relevo.bench.trace import Trace
from relevo.bench.workloads import Process, make_workload
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.local import LocalDeployment
from relevo.launch.model_source import resolve_model

SPAN_S = 8.0
LONG_SPAN_S = 24.0  # of little load, so that there are requests enough
REQUESTS = 16
TIGHT_TPOT, TIGHT_ITL = 2.0, 4.0  # times the step of an idle worker
SHORT_SPAN_S = 3.5
SHORT_ROUNDS = 5
SLOWER = "slow=0.2"
SLOW_LINK = "rate=8"  # MB/s; KV is computed at 13 to 26, as the machine is


class TightPlan(Plan):
    """Budgets of gaps that are tight at whatever pace the machine has."""

    def budgets(self, pace: Pace, trace: Trace) -> Budgets:
        ttft_ms = super().budgets(pace, trace).ttft_ms
        return Budgets(ttft_ms, TIGHT_TPOT * pace.step_ms, TIGHT_ITL * pace.step_ms)


def arrivals(
    workload: str, devices: int, utilisation: float, span_s: float | None = SPAN_S
) -> Callable[[Pace], Trace]:
    """`span_s`: where it is None, as long as REQUESTS take to arrive."""

    def trace(pace: Pace) -> Trace:
        draft = make_workload(workload, Process(20), 60, 0)
        rate = rate_for(draft, pace, devices, utilisation)
        made = make_workload(workload, Process(rate), span_s or REQUESTS / rate, 0)
        return made.fitted(pace.context)

    return trace


def plan(trace: Callable[[Pace], Trace]) -> Plan:
    return Plan(quick=True, rounds=4, probe_s=6, interference_prompts=2, trace=trace)


def tight_plan(trace: Callable[[Pace], Trace]) -> Plan:
    """Tunes by the whole trace."""
    return TightPlan(quick=True, rounds=4, probe_s=600, interference_prompts=2, trace=trace)


WHOLE_FORMS = ("replicas-whole", "all-devices-whole", "disaggregated")
REPLICAS = ("replicas-whole", "replicas-chunked", "disaggregated")
# Devices, forms, plan. `yes`: decoding streams with a tight budget on their gaps beside long
# prompts. A "no" to two forms is one to all.
PLANTED = {
    "yes": (2, FORMS, tight_plan(arrivals("streams", 2, 0.9, None))),
    "short": (2, WHOLE_FORMS, plan(arrivals("short", 2, 0.1, LONG_SPAN_S))),
    "link": (2, WHOLE_FORMS, plan(arrivals("mixed", 2, 0.3))),
    "one-device": (1, REPLICAS, plan(arrivals("mixed", 1, 0.3, LONG_SPAN_S))),
}


def planted(kind: str) -> Report:
    count, forms, wanted = PLANTED[kind]
    devices = Devices.of(count, sorted(os.sched_getaffinity(0))[:count])
    options = EngineOptions(handoff_faults=SLOW_LINK if kind == "link" else "")
    bench = Bench(resolve_model(DEMO_MODEL), options, 49_000, 0)
    return Comparison(bench, wanted, count).run(devices, forms)


def like_with_like(slower: str, seed: int) -> Report:
    """Two deployments of replicas, each on both cores and at rest while the other runs."""
    model = resolve_model(DEMO_MODEL)
    cores = sorted(os.sched_getaffinity(0))[:2]
    base = replicas(Devices.of(2, cores))
    options = EngineOptions()
    with (
        LocalDeployment(options.deployment(model, base)) as first,
        LocalDeployment(options.deployment(model, replace(base, faults=slower))) as second,
    ):
        subjects = [
            Endpoint("a", "colocated", first.url, model.name),
            Endpoint("b", "disaggregated", second.url, model.name),
        ]

        def trace(pace):
            draft = make_workload("short", Process(20), 60, 0)
            rate = rate_for(draft, pace, 2, 0.4)
            return make_workload("short", Process(rate), SHORT_SPAN_S, seed)

        wanted = Plan(
            quick=True, rounds=SHORT_ROUNDS, probe_s=1, interference_prompts=1, trace=trace
        )
        return Comparison(Bench(None, options, 49_000, 0), wanted, 2).run_subjects(subjects)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = (*PLANTED, "same", "slow")
    parser.add_argument("kinds", nargs="+", choices=kinds)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    for kind in options.kinds:
        for number in range(options.times):
            begin = time.monotonic()
            if kind in ("same", "slow"):
                report = like_with_like(SLOWER if kind == "slow" else "", seed=number)
            else:
                report = planted(kind)
            print(
                json.dumps({
                    "kind": kind, "verdict": report.verdict, "text": report.text,
                    "differences": [[d.measure, round(d.value, 3), round(d.detectable or 0, 3)]
                                    for d in report.differences],
                    "seconds": round(time.monotonic() - begin),
                }),
                flush=True,
            )  # fmt: skip
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                name = f"{kind}-{number}"
                (options.out / f"{name}.json").write_bytes(report.to_bytes())
                write_html(options.out / f"{name}.html", {kind: report})


if __name__ == "__main__":
    sys.exit(main())

"""What each benchmark's command does."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable

from relevo.bench.calibrate import Pace
from relevo.bench.compare import Comparison
from relevo.bench.energy import read_power_csv
from relevo.bench.plan import Plan
from relevo.bench.report import load_report
from relevo.bench.trace import Trace
from relevo.cli.bench_setting import Endpoints, Started
from relevo.cli.bench_trace import TracePace, trace_source
from relevo.errors import ConfigError
from relevo.launch.model_source import resolve_model

QUICK_S, FULL_S = 8.0, 60.0
QUICK_ROUNDS, FULL_ROUNDS = 4, 4
QUICK_PROBE_S, FULL_PROBE_S = 6.0, 20.0
QUICK_WITHIN_S = 450.0  # 8 minutes, less what comes before and after
FULL_LOADS = (0.5, 1.5)


def run_benchmark(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises RelevoError."""
    benchmarks: dict[str, Callable[[argparse.Namespace], int]] = {
        "compare": _compare,
        "load": _load,
        "report": _report,
        "verify": _verify,
        "handoff": _handoff,
        "interference": _interference,
        "footprint": _footprint,
    }
    return benchmarks[options.bench](options)


def _handoff(options: argparse.Namespace) -> int:
    from relevo.bench.handoff import run_handoff

    return run_handoff(
        resolve_model(options.model),
        options.repeats,
        verify_kv=options.verify_kv,
        as_json=options.json,
    )


def _interference(options: argparse.Namespace) -> int:
    from relevo.bench.interference import run_interference

    return run_interference(
        resolve_model(options.model), options.long_prompt, options.repeats, as_json=options.json
    )


def _footprint(options: argparse.Namespace) -> int:
    from relevo.bench.footprint import run_footprint

    return run_footprint(resolve_model(options.model), options.repeats, as_json=options.json)


def _verify(options: argparse.Namespace) -> int:
    from relevo.bench.verify import run_verify

    return run_verify(options.report)


def _report(options: argparse.Namespace) -> int:
    from relevo.bench.report_html import write_html
    from relevo.bench.report_table import print_reports

    reports = {str(path): load_report(path) for path in options.reports}
    print_reports(reports)
    if options.out is not None:
        write_html(options.out, reports)
    return 0


def _load(options: argparse.Namespace) -> int:
    from relevo.bench.endpoints import discover
    from relevo.bench.load import Target, replay
    from relevo.bench.report_table import print_load

    if options.cores:
        os.sched_setaffinity(0, options.cores)
    trace = trace_source(options, None)(None)
    found = discover(options.url, options.model)
    target = Target(found.url, found.model, options.vocabulary)
    if found.context is not None:
        trace = trace.fitted(found.context)
    run = replay(target, trace, options.salt)
    if options.out is not None:
        import msgspec

        options.out.write_bytes(msgspec.json.encode(run))
    return print_load(run, trace, _given_budgets(options), as_json=options.json)


def _given_budgets(options: argparse.Namespace) -> tuple[float | None, ...]:
    return options.ttft_ms, options.tpot_ms, options.itl_p99_ms


def _compare(options: argparse.Namespace) -> int:
    from relevo.bench.report_html import write_html
    from relevo.bench.report_table import print_report

    if not 0 < options.utilisation <= 2:
        raise ConfigError("utilisation", f"{options.utilisation:g} is not above 0 and at most 2")
    quick = options.quick
    if options.duration is None and options.concurrency is None:
        options.duration = QUICK_S if quick else FULL_S
    setting = Endpoints(options) if options.url else Started(options)
    source = trace_source(options, setting.model)
    if options.power_csv is not None:
        read_power_csv(options.power_csv)

    def make_trace(pace: Pace) -> Trace:
        trace = source(TracePace(pace, setting.devices, options.utilisation))
        contexts = [c for c in (pace.context, setting.context) if c is not None]
        return trace.fitted(min(contexts)) if contexts else trace

    plan = Plan(
        quick=quick,
        rounds=options.rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS),
        probe_s=QUICK_PROBE_S if quick else FULL_PROBE_S,
        interference_prompts=2 if quick else 5,
        trace=make_trace,
        ttft_ms=options.ttft_ms,
        tpot_ms=options.tpot_ms,
        itl_p99_ms=options.itl_p99_ms,
        loads=() if quick else FULL_LOADS,
        recovery=not quick and not options.no_recovery,
        within_s=QUICK_WITHIN_S if quick and options.rounds is None else math.inf,
        settings=_settings(options),
    )
    report = setting.compare(Comparison(setting.bench, plan, setting.devices))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.json").write_bytes(report.to_bytes())
        write_html(options.out / "report.html", {"": report})
    if options.json:
        sys.stdout.buffer.write(report.to_bytes() + b"\n")
    else:
        print_report(report)
    return 0 if report.valid else 1


def _settings(options: argparse.Namespace) -> dict[str, str | int | float | bool | None]:
    """As given, for the report. Where servers are given, engine options are not theirs."""
    left_out = {"command", "bench", "json", "out", "rounds", "devices"}
    if options.url:
        left_out |= {"model", "architectures", "engine", "vllm_arguments", "dtype", "kv_memory",
                     "transport", "faults"}  # fmt: skip
    plain = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in vars(options).items()
        if name not in left_out
    }

"""Compares architectures on identical arrivals: measures interference and pace, tunes each form
briefly, replays the trace in rounds of alternating order, and concludes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from relevo.bench.architectures import (
    COLOCATED,
    DISAGGREGATED,
    Architecture,
    Devices,
    candidates,
    replicas,
    threshold_variants,
)
from relevo.bench.calibrate import Pace, budgets_for, measure_pace
from relevo.bench.interference import LONG_PROMPT, Row, measure_interference
from relevo.bench.machine import describe_machine
from relevo.bench.metrics import FORMULAS, Budgets, attainment
from relevo.bench.output import say
from relevo.bench.reasons import assumptions, reasons, would_change
from relevo.bench.recovery import measure_recovery
from relevo.bench.report import (
    SCHEMA,
    Recovery,
    Replay,
    Report,
    Setup,
    TraceInfo,
    Tuning,
    conclude,
)
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import percentile
from relevo.bench.subjects import Bench, Deployed, Subject, workers_of
from relevo.bench.trace import Trace, gap_cv
from relevo.bench.verdict import best
from relevo.errors import ConfigError

INTERFERING = ("replicas-whole", "replicas-chunked", "disaggregated")
PROBE_ROUND = 50  # salts of probes are none of the rounds'
WARM_PROMPT = 256
TraceMaker = Callable[[Pace], Trace]


@dataclass(frozen=True)
class Plan:
    """`trace`: given the machine's pace. `budgets`: those that are None follow from it. `loads`:
    factors on the trace's rate, besides 1, at which every architecture is replayed once. `quick`:
    fewer candidates in tuning, by `probe_s` of the trace each."""

    quick: bool
    rounds: int
    probe_s: float
    interference_prompts: int
    trace: TraceMaker
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_p99_ms: float | None = None
    loads: tuple[float, ...] = ()
    recovery: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise ConfigError("rounds", f"{self.rounds} is below 2: one round shows no difference")

    def budgets(self, pace: Pace, trace: Trace) -> Budgets:
        fitting = budgets_for(pace, trace)
        return Budgets(
            self.ttft_ms or fitting.ttft_ms,
            self.tpot_ms or fitting.tpot_ms,
            self.itl_p99_ms or fitting.itl_p99_ms,
        )


class Comparison:
    """One comparison's course: `run` or `run_subjects`, once."""

    def __init__(self, bench: Bench, plan: Plan) -> None:
        self._bench = bench
        self._plan = plan
        self._begin = time.monotonic()
        self._devices = 1
        self._interference: list[Row] = []
        self._tuning: list[Tuning] = []

    def run(self, devices: Devices, forms: Sequence[str]) -> Report:
        """Architectures that are started here, each form tuned."""
        self._devices = len(devices.cores)
        pair = [candidates(devices, form, quick=True)[-1] for form in INTERFERING]
        self._say("interference: " + ", ".join(a.name for a in pair))
        assert self._bench.model is not None
        self._interference = measure_interference(
            self._bench.model,
            self._bench.options,
            pair,
            LONG_PROMPT,
            self._plan.interference_prompts,
        )
        pace, trace, budgets = self._calibrated(Deployed.of(replicas(devices)))
        subjects = [Deployed.of(self._tuned(devices, form, trace, budgets)) for form in forms]
        return self._compared(subjects, pace, trace, budgets)

    def run_subjects(self, subjects: Sequence[Subject]) -> Report:
        """These as they are, such as servers that someone else has started."""
        return self._compared(subjects, *self._calibrated(subjects[0]))

    def _say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._begin:4.0f} s] {text}")

    def _calibrated(self, subject: Subject) -> tuple[Pace, Trace, Budgets]:
        with subject.started(self._bench) as running:
            running.warm(256, 2, seed=1)
            pace = measure_pace(running)
        trace = self._plan.trace(pace)
        budgets = self._plan.budgets(pace, trace)
        self._say(
            f"one worker: {pace.tokens_per_s:.0f} prompt tokens/s, a step in {pace.step_ms:.1f} "
            f"ms; {len(trace.arrivals)} requests in {trace.span_s:.0f} s; budgets: TTFT "
            f"{budgets.ttft_ms:.0f}, TPOT {budgets.tpot_ms:.0f}, ITL p99 "
            f"{budgets.itl_p99_ms:.0f} ms"
        )
        return pace, trace, budgets

    def _tuned(self, devices: Devices, form: str, trace: Trace, budgets: Budgets) -> Architecture:
        """The best of a form's candidates on the trace's first seconds; then, disaggregated, of
        the thresholds below which decode workers compute prompts themselves."""
        tried = candidates(devices, form, quick=self._plan.quick)
        found = {a.name: (a, self._probe(a, trace)) for a in tried if len(tried) > 1}
        chosen = found[_best_of(found, budgets)][0] if found else tried[0]
        if chosen.prefill:
            found |= {a.name: (a, self._probe(a, trace)) for a in threshold_variants(chosen)}
            found.setdefault(chosen.name, (chosen, self._probe(chosen, trace)))
            chosen = found[_best_of(found, budgets)][0]
        for name, (_, run) in found.items():
            e2e = [row.e2e_ms for row in run.rows if row.ok and row.e2e_ms]
            self._tuning.append(
                Tuning(
                    form,
                    name,
                    round(attainment(run.rows, budgets), 4),
                    round(percentile(e2e, 0.5), 3) if e2e else None,
                    taken=name == chosen.name,
                )
            )
        return chosen

    def _probe(self, architecture: Architecture, trace: Trace) -> LoadRun:
        self._say(f"tuning: {architecture.name}")
        probe = trace.window(0, self._plan.probe_s)
        return self._replay(Deployed.of(architecture), probe, PROBE_ROUND, 1).run

    def _compared(
        self, subjects: Sequence[Subject], pace: Pace, trace: Trace, budgets: Budgets
    ) -> Report:
        replays = self._rounds(subjects, trace)
        for load in self._plan.loads:
            scaled = trace.scaled_rate(load)
            for subject in subjects:
                self._say(f"load × {load:g}: {subject.name}")
                replays.append(self._replay(subject, scaled, PROBE_ROUND + 1, load))
        setup = self._setup(subjects, pace, trace, budgets)
        recovery = self._recovery(subjects, trace, budgets, replays)
        return conclusive_report(
            setup, replays, interference=self._interference, tuning=self._tuning, recovery=recovery
        )

    def _rounds(self, subjects: Sequence[Subject], trace: Trace) -> list[Replay]:
        """Each subject once a round, the order turned every other round."""
        replays: list[Replay] = []
        total = self._plan.rounds * len(subjects)
        for round in range(self._plan.rounds):
            for subject in subjects[:: -1 if round % 2 else 1]:
                self._say(f"replay {len(replays) + 1} of {total}: {subject.name}")
                replays.append(self._replay(subject, trace, round, 1))
                for reason in replays[-1].invalid:
                    self._say(f"{subject.name}: invalid: {reason}")
        return replays

    def _replay(self, subject: Subject, trace: Trace, round: int, load: float) -> Replay:
        with subject.started(self._bench) as running:
            running.warm(WARM_PROMPT, 2 * max(1, len(workers_of(running))), seed=round + 2)
            return running.replay(trace, round, load)

    def _recovery(
        self, subjects: Sequence[Subject], trace: Trace, budgets: Budgets, replays: list[Replay]
    ) -> list[Recovery]:
        """Of the best subject of each side that has a worker to lose."""
        found = []
        for side in (COLOCATED, DISAGGREGATED) if self._plan.recovery else ():
            able = {s.name: s for s in subjects if s.side == side and s.can_lose}
            if able:
                runs = {n: [r.run for r in replays if r.architecture == n] for n in able}
                subject = able[best(runs, budgets)]
                self._say(f"recovery: {subject.name}")
                found.append(measure_recovery(subject, self._bench, trace, budgets))
        return found

    def _model_name(self, subjects: Sequence[Subject]) -> str:
        model = self._bench.model
        return model.name if model else str(subjects[0].settings().get("model", ""))

    def _setup(
        self, subjects: Sequence[Subject], pace: Pace, trace: Trace, budgets: Budgets
    ) -> Setup:
        options, cores = self._bench.options, self._bench.client_cores
        shared = "shares all cores" if not cores else f"has cores {','.join(map(str, cores))}"
        return Setup(
            model=self._model_name(subjects),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=describe_machine(),
            settings={
                **asdict(options),
                "devices": self._devices,
                "rounds": self._plan.rounds,
                "load_generator": shared,
                "prompt_tokens_per_s": round(pace.tokens_per_s, 1),
                "step_ms": pace.step_ms,
            },
            architectures={s.name: s.settings() for s in subjects},
            budgets=budgets,
            trace=describe_trace(trace),
            assumptions=assumptions([f"the load generator {shared}; the router shares all cores"]),
        )


def _best_of(found: Mapping[str, tuple[Architecture, LoadRun]], budgets: Budgets) -> str:
    return best({name: [run] for name, (_, run) in found.items()}, budgets)


def describe_trace(trace: Trace) -> TraceInfo:
    return TraceInfo(
        name=trace.name,
        digest=trace.digest,
        requests=len(trace.arrivals),
        span_s=trace.span_s,
        rate=round(trace.rate, 4),
        concurrency=trace.concurrency,
        gap_cv=round(gap_cv(trace), 3),
        prompt_tokens_p50=percentile([a.prompt_tokens for a in trace.arrivals], 0.5),
        output_tokens_p50=percentile([a.output_tokens for a in trace.arrivals], 0.5),
        notes=trace.notes,
    )


def conclusive_report(
    setup: Setup,
    replays: Sequence[Replay],
    *,
    interference: Sequence[Row] = (),
    tuning: Sequence[Tuning] = (),
    recovery: Sequence[Recovery] = (),
) -> Report:
    """The report with all that follows from its replays."""
    conclusion = conclude(setup, replays)
    verdict = conclusion.verdict
    return Report(
        schema=SCHEMA,
        valid=conclusion.valid,
        verdict=verdict.kind,
        better=verdict.better,
        text=verdict.text,
        reasons=reasons(conclusion),
        would_change=would_change(conclusion, setup),
        differences=verdict.differences,
        best={COLOCATED: verdict.best_colocated, DISAGGREGATED: verdict.best_disaggregated},
        setup=setup,
        formulas=FORMULAS,
        interference=tuple(interference),
        tuning=tuple(tuning),
        summaries=conclusion.summaries,
        recovery=tuple(recovery),
        replays=tuple(replays),
    )

"""Compares architectures on identical arrivals: measures interference and pace, tunes each form
briefly, replays the trace in rounds of alternating order, and concludes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from relevo.bench.architectures import (
    COLOCATED,
    DISAGGREGATED,
    Architecture,
    Devices,
    candidates,
    disaggregated,
    replicas,
    threshold_variants,
)
from relevo.bench.calibrate import Pace, budgets_for, measure_pace
from relevo.bench.conclusion import concluded
from relevo.bench.interference import CHUNK, LONG_PROMPT, Row, measure_interference
from relevo.bench.machine import describe_machine
from relevo.bench.metrics import Budgets, attainment
from relevo.bench.output import say
from relevo.bench.reasons import assumptions
from relevo.bench.recovery import WARM_PROMPT, measure_recovery
from relevo.bench.report import Recovery, Replay, Report, Setup, TraceInfo, Tuning
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import percentile
from relevo.bench.subjects import Bench, Deployed, Subject, workers_of
from relevo.bench.trace import Trace, gap_cv
from relevo.bench.verdict import best
from relevo.errors import ConfigError, StateError

PROBE_REQUESTS = 8  # that a candidate is tried on at least
# Salts of what is replayed besides the rounds.
PROBE_SALT, LOAD_SALT, RECOVERY_SALT = 500, 600, 700


@dataclass(frozen=True)
class Plan:
    """`trace`: given the machine's pace. `budgets`: those that are None follow from it. `loads`:
    factors on the trace's rate, besides 1, at which every architecture is replayed once. `quick`:
    fewer candidates in tuning, by `probe_s` of the trace each. `settings`: for the report."""

    quick: bool
    rounds: int
    probe_s: float
    interference_prompts: int
    trace: Callable[[Pace], Trace]
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_p99_ms: float | None = None
    loads: tuple[float, ...] = ()
    recovery: bool = False
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise ConfigError("rounds", f"{self.rounds} is below 2: one round shows no difference")
        for key in ("ttft_ms", "tpot_ms", "itl_p99_ms"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(key.replace("_", "-"), f"{value:g} is not above 0")

    def budgets(self, pace: Pace, trace: Trace) -> Budgets:
        fitting = budgets_for(pace, trace)
        return Budgets(
            self.ttft_ms or fitting.ttft_ms,
            self.tpot_ms or fitting.tpot_ms,
            self.itl_p99_ms or fitting.itl_p99_ms,
        )


class Comparison:
    """One comparison's course: `run` or `run_subjects`, once."""

    def __init__(self, bench: Bench, plan: Plan, devices: int) -> None:
        self._bench = bench
        self._plan = plan
        self._devices = devices
        self._begin = time.monotonic()
        self._interference: list[Row] = []
        self._tuning: list[Tuning] = []

    def run(self, devices: Devices, forms: Sequence[str]) -> Report:
        """Architectures that are started here, each form tuned."""
        self._measure_interference(devices)
        pace, trace, budgets = self._calibrated(Deployed.of(replicas(devices)))
        chosen = [self._tuned(devices, form, trace, budgets) for form in forms]
        return self._compared([Deployed.of(a) for a in chosen], pace, trace, budgets)

    def run_subjects(self, subjects: Sequence[Subject]) -> Report:
        """These as they are, such as servers that someone else has started."""
        return self._compared(subjects, *self._calibrated(subjects[0]))

    def _say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._begin:4.0f} s] {text}")

    def _measure_interference(self, devices: Devices) -> None:
        three = [replicas(devices), replicas(devices, CHUNK), disaggregated(devices)]
        model, count = self._bench.model, self._plan.interference_prompts
        assert model is not None
        self._say("interference: " + ", ".join(a.name for a in three))
        try:
            self._interference = measure_interference(
                model, self._bench.options, three, LONG_PROMPT, count
            )
        except StateError as error:  # such as a model of short context; the comparison goes on
            self._say(f"interference cannot be measured: {error}")

    def _calibrated(self, subject: Subject) -> tuple[Pace, Trace, Budgets]:
        with subject.started(self._bench) as running:
            running.warm(WARM_PROMPT, 2, seed=1)
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
        found: dict[str, tuple[Architecture, LoadRun]] = {}
        if len(tried) > 1 or tried[0].prefill:
            found = {a.name: (a, self._probe(a, trace)) for a in tried}
        chosen = found[_best_of(found, budgets)][0] if found else tried[0]
        if chosen.prefill:
            found |= {a.name: (a, self._probe(a, trace)) for a in threshold_variants(chosen)}
            chosen = found[_best_of(found, budgets)][0]
        self._tuning += [
            _tuning_row(form, name, run, budgets, taken=name == chosen.name)
            for name, (_, run) in found.items()
        ]
        return chosen

    def _probe(self, architecture: Architecture, trace: Trace) -> LoadRun:
        self._say(f"tuning: {architecture.name}")
        probe = trace.opening(self._plan.probe_s, PROBE_REQUESTS)
        return self._replay(Deployed.of(architecture), probe, 0, 1, PROBE_SALT).run

    def _compared(
        self, subjects: Sequence[Subject], pace: Pace, trace: Trace, budgets: Budgets
    ) -> Report:
        replays = self._rounds(subjects, trace)
        load_traces = {"1": trace.digest}
        for number, load in enumerate(self._plan.loads if trace.concurrency is None else ()):
            scaled = trace.scaled_rate(load)
            load_traces[f"{load:g}"] = scaled.digest
            for subject in subjects:
                self._say(f"load × {load:g}: {subject.name}")
                replays.append(self._replay(subject, scaled, 0, load, LOAD_SALT + number))
        setup = self._setup(subjects, pace, trace, budgets, load_traces)
        recovery = self._recoveries(subjects, trace, budgets, replays)
        return concluded(
            setup, replays, interference=self._interference, tuning=self._tuning, recovery=recovery
        )

    def _rounds(self, subjects: Sequence[Subject], trace: Trace) -> list[Replay]:
        """Each subject once a round, the order turned every other round."""
        replays: list[Replay] = []
        total = self._plan.rounds * len(subjects)
        for round in range(self._plan.rounds):
            for subject in subjects[:: -1 if round % 2 else 1]:
                self._say(f"replay {len(replays) + 1} of {total}: {subject.name}")
                replays.append(self._replay(subject, trace, round, 1, round))
        return replays

    def _replay(self, subject: Subject, trace: Trace, round: int, load: float, salt: int) -> Replay:
        """One that fails does not count, and says why; the others go on."""
        try:
            with subject.started(self._bench) as running:
                running.warm(WARM_PROMPT, 2 * max(1, len(workers_of(running))), seed=100 * salt)
                replay = running.replay(trace, round, load, salt)
        except StateError as error:
            run = LoadRun(trace.digest, 0, trace.span_s, 0.0, 0.0, 0.0, ())
            replay = Replay(subject.name, round, load, (str(error),), run, run.digest)
        for reason in replay.invalid:
            self._say(f"{subject.name}: invalid: {reason}")
        return replay

    def _recoveries(
        self, subjects: Sequence[Subject], trace: Trace, budgets: Budgets, replays: list[Replay]
    ) -> list[Recovery]:
        """Of the best subject of each side that has a worker to lose."""
        found = []
        for side in (COLOCATED, DISAGGREGATED) if self._plan.recovery else ():
            able = {s.name: s for s in subjects if s.side == side and s.can_lose}
            if not able:
                continue
            runs = {
                name: [r.run for r in replays if (r.architecture, r.load) == (name, 1)]
                for name in able
            }
            subject = able[best(runs, budgets)]
            self._say(f"loss of a worker: {subject.name}")
            try:
                recovery = measure_recovery(subject, self._bench, trace, budgets, RECOVERY_SALT)
            except StateError as error:
                self._say(f"{subject.name}: cannot be measured: {error}")
                continue
            if recovery is not None:
                found.append(recovery)
        return found

    def _setup(
        self,
        subjects: Sequence[Subject],
        pace: Pace,
        trace: Trace,
        budgets: Budgets,
        load_traces: dict[str, str],
    ) -> Setup:
        bench = self._bench
        cores = ",".join(map(str, bench.client_cores))
        generator = f"has cores {cores}" if cores else "shares all cores"
        taken = [f"the load generator {generator}"]
        if bench.model is not None:
            taken.append("the router shares all cores")
        return Setup(
            model=bench.model.name if bench.model else str(subjects[0].settings()["model"]),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=describe_machine(),
            settings={
                **self._plan.settings,
                "devices": self._devices,
                "rounds": self._plan.rounds,
                "salt": bench.salt,
                "prompt_tokens_per_s": round(pace.tokens_per_s, 1),
                "step_ms": pace.step_ms,
            },
            architectures={s.name: s.settings() for s in subjects},
            budgets=budgets,
            trace=describe_trace(trace),
            load_traces=load_traces,
            assumptions=assumptions(taken),
        )


def _best_of(found: Mapping[str, tuple[Architecture, LoadRun]], budgets: Budgets) -> str:
    return best({name: [run] for name, (_, run) in found.items()}, budgets)


def _tuning_row(form: str, name: str, run: LoadRun, budgets: Budgets, *, taken: bool) -> Tuning:
    e2e = [row.e2e_ms for row in run.rows if row.ok and row.e2e_ms]
    p50 = round(percentile(e2e, 0.5), 3) if e2e else None
    return Tuning(form, name, round(attainment(run.rows, budgets), 4), p50, taken)


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

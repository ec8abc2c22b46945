"""Compares architectures on identical arrivals: measures interference and pace, tunes each form
briefly, replays the trace in rounds of alternating order, and concludes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from relevo.bench.architectures import (
    COLOCATED,
    DISAGGREGATED,
    Architecture,
    Devices,
    disaggregated,
    replicas,
)
from relevo.bench.calibrate import Pace, measure_pace
from relevo.bench.conclusion import concluded
from relevo.bench.interference import CHUNK, LONG_PROMPT, Row, measure_interference
from relevo.bench.machine import describe_machine
from relevo.bench.metrics import Budgets
from relevo.bench.output import say
from relevo.bench.plan import Plan
from relevo.bench.reasons import assumptions
from relevo.bench.recovery import WARM_PROMPT, measure_recovery
from relevo.bench.report import Recovery, Replay, Report, Setup, TraceInfo, Tuning
from relevo.bench.rows import LoadRun
from relevo.bench.subjects import Bench, Deployed, Subject, workers_of
from relevo.bench.trace import Trace
from relevo.bench.tuning import chunk_sizes, tuned
from relevo.bench.verdict import best
from relevo.errors import StateError

PROBE_REQUESTS = 8  # that a candidate is tried on at least
# Salts of what is replayed besides the rounds.
PROBE_SALT, LOAD_SALT, RECOVERY_SALT = 500, 600, 700


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
        chunks = chunk_sizes(pace, budgets, quick=self._plan.quick)
        chosen = [self._tuned(devices, form, chunks, trace, budgets) for form in forms]
        return self._compared([Deployed.of(a) for a in chosen], pace, trace, budgets)

    def run_subjects(self, subjects: Sequence[Subject]) -> Report:
        """These as they are, such as servers that someone else has started."""
        return self._compared(subjects, *self._calibrated(subjects[0]))

    def _say(self, text: str) -> None:
        say(f"[{self._elapsed_s():4.0f} s] {text}")

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begin

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

    def _tuned(
        self,
        devices: Devices,
        form: str,
        chunks: Sequence[int],
        trace: Trace,
        budgets: Budgets,
    ) -> Architecture:
        opening = trace.opening(self._plan.probe_s, PROBE_REQUESTS)

        def probe(architecture: Architecture) -> LoadRun:
            self._say(f"tuning: {architecture.name}")
            return self._replay(Deployed.of(architecture), opening, 0, 1, PROBE_SALT).run

        chosen, rows = tuned(devices, form, chunks, probe, budgets)
        self._tuning += rows
        return chosen

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
        found: dict[str, float] = {
            "rounds": 1 + max(replay.round for replay in replays),
            "prompt_tokens_per_s": round(pace.tokens_per_s, 1),
            "step_ms": pace.step_ms,
        }
        setup = self._setup(subjects, trace, budgets, load_traces, found)
        recovery = self._recoveries(subjects, trace, budgets, replays)
        return concluded(
            setup, replays, interference=self._interference, tuning=self._tuning, recovery=recovery
        )

    def _rounds(self, subjects: Sequence[Subject], trace: Trace) -> list[Replay]:
        """Each subject once a round, the order turned every other round."""
        replays: list[Replay] = []
        total = self._plan.rounds * len(subjects)
        longest_s = 0.0
        for round in range(self._plan.rounds):
            begin_s = self._elapsed_s()
            if not self._plan.has_room(round, begin_s, longest_s):
                self._say(f"no time for more than {round} rounds")
                break
            for subject in subjects[:: -1 if round % 2 else 1]:
                self._say(f"replay {len(replays) + 1} of {total}: {subject.name}")
                replays.append(self._replay(subject, trace, round, 1, round))
            longest_s = max(longest_s, self._elapsed_s() - begin_s)
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
        trace: Trace,
        budgets: Budgets,
        load_traces: dict[str, str],
        found: dict[str, float],
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
                "salt": bench.salt,
                **found,
            },
            architectures={s.name: s.settings() for s in subjects},
            budgets=budgets,
            trace=TraceInfo.of(trace),
            load_traces=load_traces,
            assumptions=assumptions(taken),
        )

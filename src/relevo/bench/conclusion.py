"""What follows from a comparison's replays: the verdict, and the report around it."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.bench.architectures import COLOCATED, DISAGGREGATED
from relevo.bench.interference import Row
from relevo.bench.metrics import FORMULAS
from relevo.bench.reasons import reasons, would_change
from relevo.bench.report import (
    SCHEMA,
    Conclusion,
    Recovery,
    Replay,
    Report,
    Setup,
    Tuning,
)
from relevo.bench.rows import LoadRun
from relevo.bench.summaries import summarise
from relevo.bench.verdict import judge


def concluded(
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
        would_change=would_change(conclusion, setup, replays),
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


def conclude(setup: Setup, replays: Sequence[Replay]) -> Conclusion:
    """Summaries of all, and the verdict on those at load 1. The verdict's figures are of the rows
    alone: `relevo bench verify` comes to them again."""
    keys = list(dict.fromkeys((r.architecture, r.load) for r in replays))
    summaries = tuple(
        summarise(
            name, load, setup.budgets,
            [r for r in replays if (r.architecture, r.load) == (name, load)],
        )
        for name, load in keys
    )  # fmt: skip
    judged = [r for r in replays if r.load == 1]
    invalid = [
        f"{r.architecture}, round {r.round + 1}: {reason}" for r in judged for reason in r.invalid
    ]
    sides: dict[str, dict[str, list[LoadRun]]] = {"colocated": {}, "disaggregated": {}}
    for replay in sorted(judged, key=lambda r: r.round):
        side = str(setup.architectures[replay.architecture]["side"])
        sides[side].setdefault(replay.architecture, []).append(replay.run)
    verdict = judge(sides["colocated"], sides["disaggregated"], setup.budgets, invalid)
    return Conclusion(not invalid, verdict, summaries)

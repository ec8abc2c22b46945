"""What a comparison is to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from relevo.bench.calibrate import Pace, budgets_for
from relevo.bench.metrics import Budgets
from relevo.bench.trace import Trace
from relevo.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """`trace`: given the machine's pace. `budgets`: those that are None follow from it. `loads`:
    factors on the trace's rate, besides 1, at which every architecture is replayed once. `quick`:
    fewer candidates in tuning, by `probe_s` of the trace each. `within_s`: of the whole comparison;
    rounds are left out for it, never the first two. `settings`: for the report."""

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
    within_s: float = math.inf
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise ConfigError("rounds", f"{self.rounds} is below 2: one round shows no difference")
        for key in ("ttft_ms", "tpot_ms", "itl_p99_ms"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise ConfigError(key.replace("_", "-"), f"{value:g} is not above 0")

    def has_room(self, rounds: int, elapsed_s: float, longest_round_s: float) -> bool:
        """For another one after this many."""
        return rounds < 2 or elapsed_s + longest_round_s <= self.within_s

    def budgets(self, pace: Pace, trace: Trace) -> Budgets:
        fitting = budgets_for(pace, trace)
        return Budgets(
            self.ttft_ms or fitting.ttft_ms,
            self.tpot_ms or fitting.tpot_ms,
            self.itl_p99_ms or fitting.itl_p99_ms,
        )

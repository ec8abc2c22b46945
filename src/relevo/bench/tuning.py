"""The best candidate of a form of architecture, by a short trial of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relevo.bench.architectures import (
    CHUNKS,
    Architecture,
    Devices,
    candidates,
    threshold_variants,
)
from relevo.bench.calibrate import Pace, fitting_chunk
from relevo.bench.metrics import Budgets, attainment
from relevo.bench.report import Tuning
from relevo.bench.rows import LoadRun
from relevo.bench.statistics import percentile
from relevo.bench.verdict import best

Probe = Callable[[Architecture], LoadRun]


def chunk_sizes(pace: Pace, budgets: Budgets, *, quick: bool) -> list[int]:
    """To try: one that fits the budgets, or chunked prefill would be no match by choice of sizes;
    and some that cost prefill less. `quick`: fewer."""
    return sorted({fitting_chunk(pace, budgets), *(CHUNKS[::2] if quick else CHUNKS)})


def tuned(
    devices: Devices, form: str, chunks: Sequence[int], probe: Probe, budgets: Budgets
) -> tuple[Architecture, list[Tuning]]:
    """The best of a form's candidates; then, disaggregated, of the thresholds below which decode
    workers compute prompts themselves. A form with nothing to choose is not tried."""
    tried = candidates(devices, form, chunks)
    if len(tried) == 1 and not tried[0].prefill:
        return tried[0], []
    found = {a.name: (a, probe(a)) for a in tried}
    chosen = found[_best_of(found, budgets)][0]
    if chosen.prefill:
        found |= {a.name: (a, probe(a)) for a in threshold_variants(chosen)}
        chosen = found[_best_of(found, budgets)][0]
    rows = [
        _row(form, name, run, budgets, taken=name == chosen.name)
        for name, (_, run) in found.items()
    ]
    return chosen, rows


def _best_of(found: Mapping[str, tuple[Architecture, LoadRun]], budgets: Budgets) -> str:
    return best({name: [run] for name, (_, run) in found.items()}, budgets)


def _row(form: str, name: str, run: LoadRun, budgets: Budgets, *, taken: bool) -> Tuning:
    e2e = [row.e2e_ms for row in run.rows if row.ok and row.e2e_ms]
    p50 = round(percentile(e2e, 0.5), 3) if e2e else None
    return Tuning(form, name, round(attainment(run.rows, budgets), 4), p50, taken)

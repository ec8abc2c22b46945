"""The few figures of an architecture that a reader wants first."""

from __future__ import annotations

from relevo.bench.report import Summary

_FIGURES = (
    ("ttft_ms", "p50", "TTFT p50"),
    ("ttft_ms", "p99", "TTFT p99"),
    ("tpot_ms", "p50", "TPOT p50"),
    ("itl_ms", "p99", "ITL p99"),
    ("longest_gap_ms", "p99", "gap p99"),
    ("e2e_ms", "p50", "E2E p50"),
)
OVERVIEW_COLUMNS = (
    "architecture", "load", "in budget", "good /s", *(title for _, _, title in _FIGURES),
)  # fmt: skip


def overview(summary: Summary) -> list[str]:
    """A cell per column; times in ms."""
    cells = [
        summary.architecture,
        f"{summary.load:g}",
        f"{summary.rates['attainment'].value:.0%}",
        f"{summary.rates['goodput_rps'].value:.2f}",
    ]
    for figure, share, _ in _FIGURES:
        sample = summary.samples["all"].get(figure)
        cells.append(f"{sample.percentiles[share].value:.0f}" if sample else "")
    return cells

"""The few figures of an architecture that a reader wants first."""

from __future__ import annotations

from relevo.bench.report import Summary

HEADLINES = (
    ("ttft_ms", "p50", "TTFT p50"),
    ("ttft_ms", "p99", "TTFT p99"),
    ("tpot_ms", "p50", "TPOT p50"),
    ("itl_ms", "p99", "ITL p99"),
    ("longest_gap_ms", "p99", "longest gap p99"),
    ("e2e_ms", "p50", "E2E p50"),
)
OVERVIEW_COLUMNS = (
    "architecture", "load", "in budget", "good /s", *(title for *_, title in HEADLINES),
)  # fmt: skip


def overview(summary: Summary) -> list[str]:
    """A cell per column; times in ms."""
    found = [figure_of(summary, figure, share) for figure, share, _ in HEADLINES]
    return [
        summary.architecture,
        f"{summary.load:g}",
        f"{summary.rates['attainment'].value:.0%}",
        f"{summary.rates['goodput_rps'].value:.2f}",
        *("" if value is None else f"{value:.0f}" for value in found),
    ]


def figure_of(summary: Summary, figure: str, share: str, group: str = "all") -> float | None:
    """Such as the p50 of `ttft_ms`; None where no request has it."""
    sample = summary.samples[group].get(figure)
    return None if sample is None else sample.percentiles[share].value

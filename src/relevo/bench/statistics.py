"""Percentiles of small samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Percentiles(TypedDict):
    """Of a sample of size n; None where the sample is empty."""

    p50: float | None
    p90: float | None
    p99: float | None
    n: int


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest ranks (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return {"p50": None, "p90": None, "p99": None, "n": 0}
    p50, p90, p99 = (round(percentile(values, share), 3) for share in (0.5, 0.9, 0.99))
    return {"p50": p50, "p90": p90, "p99": p99, "n": len(values)}

"""Percentiles of small samples, and what can be said from few repeats."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple, TypedDict, TypeVar

T = TypeVar("T")
# Student's t, two-sided 97.5 %, by degrees of freedom; more than 20 count as 20.
_T_975 = (25.452, 6.205, 4.177, 3.495, 3.163, 2.969, 2.841, 2.752, 2.685, 2.634,
          2.593, 2.560, 2.533, 2.510, 2.490, 2.473, 2.458, 2.445, 2.433, 2.423)  # fmt: skip
_MOST_EXACT_REPEATS = 5
_DRAWN = 200


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


class Interval(NamedTuple):
    """An estimate and where the true value lies; None where one repeat says nothing of it."""

    value: float
    low: float | None
    high: float | None


def student_t(freedom: int) -> float:
    """Two-sided 97.5 %."""
    return _T_975[min(freedom, len(_T_975)) - 1]


def resampled(repeats: Sequence[T], statistic: Callable[[list[T]], float]) -> Interval:
    """The statistic of all repeats, and the middle 95 % of it over whole repeats drawn with
    replacement (Efron's bootstrap), without chance where the repeats are few."""
    whole = statistic(list(repeats))
    if len(repeats) < 2:
        return Interval(whole, None, None)
    found = sorted(
        (statistic([repeats[i] for i in draw]), weight) for draw, weight in _draws(len(repeats))
    )
    return Interval(whole, _weighted(found, 0.025), _weighted(found, 0.975))


def _draws(n: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every multiset of n out of n with the number of its orders; of more than 126, drawn ones."""
    if n > _MOST_EXACT_REPEATS:
        chance = random.Random(n)
        for _ in range(_DRAWN):
            yield tuple(chance.randrange(n) for _ in range(n)), 1
        return
    for draw in combinations_with_replacement(range(n), n):
        orders = math.factorial(n)
        for i in set(draw):
            orders //= math.factorial(draw.count(i))
        yield draw, orders


def _weighted(found: Sequence[tuple[float, int]], share: float) -> float:
    """The least value that this share of the weight does not exceed."""
    target = share * sum(weight for _, weight in found)
    reached = 0
    for value, weight in found:
        reached += weight
        if reached >= target:
            return value
    return found[-1][0]

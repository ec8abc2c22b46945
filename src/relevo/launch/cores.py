"""Which cores each worker runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence


def own_cores(workers: int) -> list[tuple[int, ...]]:
    """This process's cores, dealt to so many workers."""
    return deal(sorted(os.sched_getaffinity(0)), workers)


def deal(available: Sequence[int], workers: int) -> list[tuple[int, ...]]:
    """Deals cores out: disjoint runs of equal length while there are enough,
    one core each in turn where there are fewer cores than workers."""
    if workers >= len(available):
        return [(available[i % len(available)],) for i in range(workers)]
    share = len(available) // workers
    return [tuple(available[i * share : (i + 1) * share]) for i in range(workers)]

"""Which cores each worker runs on."""

from __future__ import annotations

import os
from collections.abc import Sequence


def own_cores(workers: int, cores: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Deals this process's cores out: disjoint runs of equal length while there are enough,
    one core each in turn where there are fewer cores than workers."""
    available = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    if workers >= len(available):
        return [(available[i % len(available)],) for i in range(workers)]
    share = len(available) // workers
    return [tuple(available[i * share : (i + 1) * share]) for i in range(workers)]

"""Counting states, for the metrics."""

from __future__ import annotations

import enum
from collections.abc import Iterable


def count_states(kinds: type[enum.Enum], each: Iterable[enum.Enum]) -> dict[str, int]:
    """How many are in each state, those without any included."""
    counts = dict.fromkeys((kind.name.lower() for kind in kinds), 0)
    for state in each:
        counts[state.name.lower()] += 1
    return counts

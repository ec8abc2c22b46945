"""Token ids for a trace's prompts."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from relevo.bench.trace import Arrival, Segment

DEFAULT_VOCABULARY = 30_000
_SPECIAL = 1_000  # the first ids are often special, or bytes


class PromptMaker:
    """Token ids below `vocabulary` that follow from each segment's seed; equal seeds give equal
    beginnings, whatever the lengths. Another `salt` gives other tokens to all, so that a server
    that has seen a trace does not know the prompts when it is replayed."""

    def __init__(self, vocabulary: int = DEFAULT_VOCABULARY, salt: int = 0) -> None:
        self._low = min(_SPECIAL, vocabulary // 2)
        self._high = vocabulary
        self._salt = salt
        self._cached = lru_cache(maxsize=4096)(self._make)

    def __call__(self, arrival: Arrival) -> list[int]:
        return [token for segment in arrival.prompt for token in self._cached(segment)]

    def _make(self, segment: Segment) -> list[int]:
        generator = np.random.Generator(np.random.PCG64([segment.seed, self._salt]))
        ids: list[int] = generator.integers(self._low, self._high, segment.tokens).tolist()
        return ids

"""Chooses the next tokens. Draws depend on seed and position only: a request moves stateless."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from relevo.types import Sampling

COLDEST = 1e-5
_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for a position of a seeded generation (SplitMix64, Steele et al. 2014)."""
    x = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((x ^ (x >> 31)) >> 11) / float(1 << 53)


def sample(logits: torch.Tensor, samplings: Rows[Sampling], positions: Rows[int]) -> list[int]:
    """One token per row of `logits` [R, vocabulary]; `positions` are those of the new tokens.
    A temperature so low that it would overflow is greedy."""
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    for row, (sampling, position) in enumerate(zip(samplings, positions, strict=True)):
        if sampling.temperature > COLDEST and sampling.top_k != 1:
            chosen[row] = _draw(logits[row].float(), sampling, position)
    return chosen


def _draw(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """Temperature, then top-k, then top-p (the smallest set whose probability reaches p)."""
    if not sampling.top_k and sampling.top_p == 1:  # nothing is left out: no need to sort
        cumulative = (logits / sampling.temperature).softmax(dim=-1).cumsum(dim=-1)
        threshold = uniform(sampling.seed, position) * float(cumulative[-1])
        token = int(torch.searchsorted(cumulative, threshold, right=True))
        return min(token, len(logits) - 1)
    k = min(sampling.top_k or len(logits), len(logits))
    values, tokens = torch.topk(logits / sampling.temperature, k)
    cumulative = values.softmax(dim=-1).cumsum(dim=-1)
    kept = int((cumulative < sampling.top_p).sum()) + 1 if sampling.top_p < 1 else k
    kept = min(kept, k)
    threshold = uniform(sampling.seed, position) * float(cumulative[kept - 1])
    index = int(torch.searchsorted(cumulative[:kept], threshold, right=True))
    return int(tokens[min(index, kept - 1)])

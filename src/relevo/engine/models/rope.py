"""Rotary position embedding tables (Su et al., arXiv 2104.09864)."""

from __future__ import annotations

import math

import torch

from relevo.engine.models.config import ModelConfig, RopeScaling


def rope_tables(
    config: ModelConfig, positions: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [positions, head_dim / 2]."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _scale(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return angles.cos().contiguous().to(device), angles.sin().contiguous().to(device)


def _scale(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Llama 3: long wavelengths are slowed by `factor`, short ones kept, the rest blended.
    turns = scaling.original_context * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (keep + (1 - keep) / scaling.factor)

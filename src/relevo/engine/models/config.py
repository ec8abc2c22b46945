"""What the engine needs to know of a model, from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from relevo.errors import UnsupportedModel

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


class RopeScaling(msgspec.Struct, frozen=True):
    """Llama 3's frequency-dependent scaling; `linear` uses `factor` alone."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


class ModelConfig(msgspec.Struct, frozen=True):
    """A dense decoder-only transformer with grouped-query attention."""

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool


def config_from_hf(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Raises UnsupportedModel, naming `where` and the setting that this engine cannot run."""
    names = raw.get("architectures") or []
    architecture = next((ARCHITECTURES[n] for n in names if n in ARCHITECTURES), None)
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{where}: architectures {names} has none of {known}")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{where}: hidden_act {raw['hidden_act']!r}, only 'silu' is known")
    for setting in ("mlp_bias", "attention_bias"):  # Qwen2's own q, k, v bias goes without saying
        if raw.get(setting):
            raise UnsupportedModel(f"{where}: {setting} is not supported")
    if raw.get("use_sliding_window"):
        raise UnsupportedModel(f"{where}: use_sliding_window is not supported")
    if raw.get("quantization_config"):
        raise UnsupportedModel(f"{where}: quantised safetensors are not supported")
    try:
        heads = int(raw["num_attention_heads"])
        hidden = int(raw["hidden_size"])
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        return ModelConfig(
            architecture=architecture,
            layers=int(raw["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(raw["intermediate_size"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or hidden // heads),
            vocabulary=int(raw["vocab_size"]),
            context=int(raw["max_position_embeddings"]),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
            rope_scaling=_scaling(rope, where),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
        )
    except KeyError as error:
        raise UnsupportedModel(f"{where}: {error.args[0]} is missing") from error


def _scaling(rope: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(f"{where}: rope_type {kind!r}, known are default, linear, llama3")
    return RopeScaling(
        kind=kind,
        factor=float(rope["factor"]),
        low_freq_factor=float(rope.get("low_freq_factor", 1.0)),
        high_freq_factor=float(rope.get("high_freq_factor", 4.0)),
        original_context=int(rope.get("original_max_position_embeddings", 8192)),
    )

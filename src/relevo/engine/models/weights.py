"""Fused weights: written once to a cache file, then memory-mapped by every worker of the host.

The file is a safetensors file; its metadata holds the model's configuration, so a worker that
finds it never opens the original.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from relevo.engine.models.checkpoint import Checkpoint, open_checkpoint
from relevo.engine.models.config import ModelConfig

_FORMAT = 1
Progress = Callable[[str, float], None]


def load_weights(
    model: Path, cache: Path, dtype: torch.dtype, progress: Progress
) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Configuration and fused tensors, mapped read-only from the cache file.

    `progress(what, fraction)` is called while the cache file is being written. Raises
    UnsupportedModel.
    """
    name = str(dtype).removeprefix("torch.")
    file = cache / f"fused-{name}-v{_FORMAT}.safetensors"
    cache.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        with _only_one(cache / "lock"):
            if not file.exists():
                _write(file, open_checkpoint(model), dtype, progress)
    progress("mapping weights", 1.0)
    with safe_open(file, framework="pt") as opened:
        config = msgspec.json.decode(opened.metadata()["config"], type=ModelConfig)
        return config, {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Held by one process of the host at a time; freed by the kernel if it dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, source: Checkpoint, dtype: torch.dtype, progress: Progress) -> None:
    fused: dict[str, torch.Tensor] = {}
    config = source.config
    for index in range(config.layers):
        for name, tensor in _fuse_layer(source, index).items():
            fused[f"layers.{index}.{name}"] = tensor.to(dtype).contiguous()
        progress("fusing weights", (index + 1) / config.layers)
    fused["embedding"] = source.tensor("model.embed_tokens.weight").to(dtype).contiguous()
    fused["norm"] = source.tensor("model.norm.weight").to(dtype)
    if not config.tied_embeddings:
        fused["head"] = source.tensor("lm_head.weight").to(dtype).contiguous()
    draft = file.with_suffix(".draft")  # one name: a start that was cut short leaves one at most
    save_file(fused, draft, metadata={"config": msgspec.json.encode(config).decode()})
    os.replace(draft, file)


def _fuse_layer(source: Checkpoint, index: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{index}"

    def get(name: str) -> torch.Tensor:
        return source.tensor(f"{prefix}.{name}")

    tensors = {
        "input_norm": get("input_layernorm.weight"),
        "qkv": torch.cat([get(f"self_attn.{x}_proj.weight") for x in "qkv"]),
        "out": get("self_attn.o_proj.weight"),
        "post_norm": get("post_attention_layernorm.weight"),
        "gate_up": torch.cat([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")]),
        "down": get("mlp.down_proj.weight"),
    }
    if source.config.qkv_bias:
        tensors["qkv_bias"] = torch.cat([get(f"self_attn.{x}_proj.bias") for x in "qkv"])
    if source.config.qk_norm:
        tensors["q_norm"] = get("self_attn.q_norm.weight")
        tensors["k_norm"] = get("self_attn.k_norm.weight")
    return tensors

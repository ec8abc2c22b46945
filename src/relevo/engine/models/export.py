"""A GGUF model as a Hugging Face folder, for engines that read nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from relevo.engine.models.checkpoint import Checkpoint, open_checkpoint
from relevo.engine.models.config import ARCHITECTURES, ModelConfig
from relevo.errors import UnsupportedModel

_FORMAT = 1


def export_model(model: Path, tokenizer: Path, cache: Path) -> Path:
    """A folder in `cache`, written whole or not at all unless it is there: the model's weights in
    float32, its configuration, and the files of `tokenizer`. Raises UnsupportedModel."""
    folder = cache / f"huggingface-v{_FORMAT}"
    if folder.exists():
        return folder
    source = open_checkpoint(model)
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    shutil.copytree(tokenizer, draft, dirs_exist_ok=True)
    (draft / "config.json").write_text(json.dumps(hf_config(source.config), indent=2))
    weights = {name: source.tensor(name).contiguous() for name in _names(source)}
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    try:
        os.rename(draft, folder)
    except OSError:  # another process was first; its result is the same
        shutil.rmtree(draft)
    return folder


def hf_config(config: ModelConfig) -> dict[str, object]:
    """What config.json says of it; `config_from_hf` reads the same back. Raises UnsupportedModel
    where that cannot be."""
    if config.rope_scaling is not None:
        raise UnsupportedModel("rope_scaling: a scaled rope cannot be exported")
    (architecture,) = (hf for hf, ours in ARCHITECTURES.items() if ours == config.architecture)
    return {
        "architectures": [architecture],
        "model_type": config.architecture,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": str(torch.float32).removeprefix("torch."),
    }


def _names(source: Checkpoint) -> Iterator[str]:
    config = source.config
    yield "model.embed_tokens.weight"
    yield "model.norm.weight"
    if not config.tied_embeddings:
        yield "lm_head.weight"
    for index in range(config.layers):
        prefix = f"model.layers.{index}"
        yield f"{prefix}.input_layernorm.weight"
        yield f"{prefix}.post_attention_layernorm.weight"
        yield f"{prefix}.self_attn.o_proj.weight"
        yield from (f"{prefix}.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
        yield from (f"{prefix}.self_attn.{name}_proj.weight" for name in "qkv")
        if config.qkv_bias:
            yield from (f"{prefix}.self_attn.{name}_proj.bias" for name in "qkv")
        if config.qk_norm:
            yield from (f"{prefix}.self_attn.{name}_norm.weight" for name in "qk")

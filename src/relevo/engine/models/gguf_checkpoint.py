"""GGUF files of the supported architectures, dequantised tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from relevo.engine.models.config import ModelConfig
from relevo.errors import UnsupportedModel

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor name."""
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_INNER[stem]}.{kind}"


class GgufCheckpoint:
    """Everything is dequantised to float32; what is not there is named with the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            reader = gguf.GGUFReader(path)
            self._fields = {
                name: field.contents()
                for name, field in reader.fields.items()
                if not name.startswith("tokenizer.")
            }
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except (ValueError, KeyError, IndexError, OSError) as error:
            raise UnsupportedModel(f"{path}: truncated or no GGUF file: {error}") from error
        self.config = self._read_config()

    def _read_config(self) -> ModelConfig:
        architecture = self._fields.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise UnsupportedModel(
                f"{self._path}: general.architecture {architecture!r} is none of {known}"
            )

        def field(name: str, default: Any = None) -> Any:
            value = self._fields.get(f"{architecture}.{name}", default)
            if value is None:
                raise UnsupportedModel(f"{self._path}: {architecture}.{name} is missing")
            return value

        if field("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors:
            raise UnsupportedModel(f"{self._path}: scaled rope in GGUF files is not supported")
        if "blk.0.attn_output.bias" in self._tensors:
            raise UnsupportedModel(f"{self._path}: a bias of attn_output is not supported")
        heads, hidden = field("attention.head_count"), field("embedding_length")
        return ModelConfig(
            architecture=architecture,
            layers=field("block_count"),
            hidden=hidden,
            intermediate=field("feed_forward_length"),
            heads=heads,
            kv_heads=field("attention.head_count_kv", heads),
            head_dim=field("attention.key_length", hidden // heads),
            vocabulary=int(self._tensors["token_embd.weight"].shape[1]),
            context=field("context_length"),
            norm_eps=round(float(field("attention.layer_norm_rms_epsilon")), 12),
            rope_theta=float(field("rope.freq_base", 10000.0)),
            rope_scaling=None,
            tied_embeddings="output.weight" not in self._tensors,
            qkv_bias="blk.0.attn_q.bias" in self._tensors,
            qk_norm="blk.0.attn_q_norm.weight" in self._tensors,
        )

    def tensor(self, name: str) -> torch.Tensor:
        found = self._tensors.get(gguf_name(name))
        if found is None:
            raise UnsupportedModel(f"{self._path}: tensor {gguf_name(name)} is missing")
        try:
            values = gguf.dequantize(found.data, found.tensor_type)
        except (ValueError, NotImplementedError) as error:
            raise UnsupportedModel(
                f"{self._path}: tensor {found.name}: {found.tensor_type.name}: {error}"
            ) from error
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        # Only Llama's files interleave the two halves that rotate together.
        if self.config.architecture == "llama" and ".q_proj." in name:
            return _halves_apart(tensor, self.config.heads)
        if self.config.architecture == "llama" and ".k_proj." in name:
            return _halves_apart(tensor, self.config.kv_heads)
        return tensor


def _halves_apart(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads, dim/2, 2, ...] → [heads, 2, dim/2, ...] on the first axis."""
    pairs = rows.view(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape).contiguous()

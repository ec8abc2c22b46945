"""The forward pass of Llama, Qwen2 and Qwen3 (dense), lean and fused.

Shape suffixes: T rows of the step (padding at the end included), R of them the rows whose logits
are wanted (they come first), H query heads, K KV heads, D head dimension, E hidden size, F
intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn.functional import embedding, rms_norm, silu

from relevo.engine.attention import AttentionBatch, PagedAttention
from relevo.engine.models.config import ModelConfig
from relevo.engine.models.linear import ColumnParallelLinear, RowParallelLinear


class Layer:
    """One transformer block's weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], index: int):
        def get(name: str) -> torch.Tensor:
            return weights[f"layers.{index}.{name}"]

        self.input_norm = get("input_norm")
        self.qkv = ColumnParallelLinear(get("qkv"), get("qkv_bias") if config.qkv_bias else None)
        self.q_norm = get("q_norm") if config.qk_norm else None
        self.k_norm = get("k_norm") if config.qk_norm else None
        self.out = RowParallelLinear(get("out"))
        self.post_norm = get("post_norm")
        self.gate_up = ColumnParallelLinear(get("gate_up"))
        self.down = RowParallelLinear(get("down"))


class Decoder:
    """A model on one device. `weights` are the fused ones (see weights.py)."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
        self.config = config
        self.embedding = weights["embedding"]
        self.layers = [Layer(config, weights, i) for i in range(config.layers)]
        self.norm = weights["norm"]
        head = "embedding" if config.tied_embeddings else "head"
        self.head = ColumnParallelLinear(weights[head])

    def forward(
        self,
        tokens_T: torch.Tensor,
        attention: PagedAttention,
        batch: AttentionBatch,
        layer_done: Callable[[], object] | None,
    ) -> torch.Tensor | None:
        """Logits [R, vocabulary] of the batch's first R rows, or None where R is 0.

        `layer_done` is called once per layer, when its keys and values are in the pool.
        """
        kept = batch.kept
        x_TE = embedding(tokens_T, self.embedding)
        for index, layer in enumerate(self.layers):
            last = index == len(self.layers) - 1
            qkv = layer.qkv(self._normed(x_TE, layer.input_norm))
            self._norm_heads(qkv, layer)
            attention.store(index, qkv, batch)
            if last and kept < len(x_TE):  # nothing reads what the other rows would become
                x_TE, qkv, batch = x_TE[:kept], qkv[:kept], batch.only_rows()
            if kept or not last:
                mixed = layer.out(attention.attend(index, qkv, batch))
            if layer_done is not None:
                layer_done()
            if last and not kept:
                return None
            x_TE = x_TE + mixed
            gate_up = layer.gate_up(self._normed(x_TE, layer.post_norm))
            gate, up = gate_up.chunk(2, dim=-1)
            x_TE = x_TE + layer.down(silu(gate).mul_(up))
        return self.head(self._normed(x_TE, self.norm))[: batch.rows]

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _norm_heads(self, qkv: torch.Tensor, layer: Layer) -> None:
        """Qwen3 normalises each head of q and k, in place."""
        if layer.q_norm is None or layer.k_norm is None:
            return
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        by_head = qkv.view(len(qkv), heads + 2 * kv_heads, dim)
        for first, last, weight in (
            (0, heads, layer.q_norm),
            (heads, heads + kv_heads, layer.k_norm),
        ):
            by_head[:, first:last] = self._normed(by_head[:, first:last], weight)

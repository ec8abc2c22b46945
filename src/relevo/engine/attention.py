"""Attention over the paged pool. Two backends with one interface: CPU kernels, or plain torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from relevo.engine import _kernels
from relevo.engine.models.config import ModelConfig
from relevo.engine.models.linear import bfloat16_is_native
from relevo.kv.layout import PoolLayout


@dataclass(frozen=True)
class Segment:
    """A chunk of one prompt: rows first .. last-1 of the step, after `history` tokens."""

    first: int
    last: int
    history: int
    pages: torch.Tensor  # int32 [pages of history + chunk]
    mask: torch.Tensor | None  # additive [chunk, history + chunk], None where plainly causal


@dataclass(frozen=True)
class AttentionBatch:
    """Where a step's tokens lie. The first `rows` are single tokens that end their context;
    segments follow without gap. Rows of the step beyond these N tokens are padding. The first
    `kept` rows (no fewer than `rows`) go through the last layer to the end."""

    rows: int
    kept: int
    positions: torch.Tensor  # int64 [N]
    slots: torch.Tensor  # int64 [N], page * page_tokens + offset
    page_table: torch.Tensor  # int32 [rows, longest]
    lengths: torch.Tensor  # int32 [rows], context with the row's own token
    segments: tuple[Segment, ...]

    def only_rows(self) -> AttentionBatch:
        return replace(self, segments=())


class PagedAttention(Protocol):
    """`qkv` is [T, (H + 2K) * D]; `store` rotates it in place and puts k and v into the pool."""

    def store(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> None: ...

    def attend(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """[T, H * D]; rows of padding are 0."""
        ...


def causal_mask(
    chunk: int, history: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Additive mask that lets token i of the chunk see the history and tokens up to itself."""
    if history == 0:
        return None
    hidden = torch.full((chunk, history + chunk), float("-inf"), dtype=dtype, device=device)
    return hidden.triu_(history + 1)


def attend_segment(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, segment: Segment
) -> torch.Tensor:
    """q [n, H, D], keys and values [K, L, D] → [n, H * D].

    Query heads that share a KV head become the head dimension and KV heads the batch, so that
    keys and values are read in place, not repeated.
    """
    chunk, heads, dim = q.shape
    kv_heads, length, _ = keys.shape
    group = heads // kv_heads
    out = scaled_dot_product_attention(
        q.view(chunk, kv_heads, group, dim).permute(1, 2, 0, 3),
        keys[:, None].expand(kv_heads, group, length, dim),
        values[:, None].expand(kv_heads, group, length, dim),
        attn_mask=None if segment.mask is None else segment.mask.to(q.dtype),
        is_causal=segment.mask is None,
    )
    return out.permute(2, 0, 1, 3).reshape(chunk, heads * dim)


class _Backend:
    def __init__(
        self, config: ModelConfig, layout: PoolLayout, pool: torch.Tensor,
        cos: torch.Tensor, sin: torch.Tensor,
    ) -> None:  # fmt: skip
        """`pool` is [layers, pages, K, 2, page_tokens, D]."""
        self.config = config
        self.page_tokens = layout.groups[0].page_tokens
        self.pool = pool
        self.cos = cos
        self.sin = sin
        self.q_width = config.heads * config.head_dim
        self.scale = config.head_dim**-0.5

    def _heads(self, qkv: torch.Tensor) -> torch.Tensor:
        queries = qkv[:, : self.q_width]
        return queries.view(len(qkv), self.config.heads, self.config.head_dim)


class CpuAttention(_Backend):
    """Own kernels where torch would copy pages: storing, gathering and single-token attention."""

    def __init__(
        self, config: ModelConfig, layout: PoolLayout, pool: torch.Tensor,
        cos: torch.Tensor, sin: torch.Tensor,
    ) -> None:  # fmt: skip
        super().__init__(config, layout, pool, cos, sin)
        self._bf16 = pool.dtype == torch.bfloat16
        self._wide = self._bf16 and not bfloat16_is_native()
        self._layers = [
            _kernels.PoolLayer(layer.data_ptr(), self.page_tokens, config.kv_heads, config.head_dim)
            for layer in pool
        ]

    def store(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> None:
        _kernels.rotate_and_store(
            self._bf16, qkv.data_ptr(), self.cos.data_ptr(), self.sin.data_ptr(),
            batch.positions.data_ptr(), batch.slots.data_ptr(), len(batch.slots), self.config.heads,
            self._layers[layer],
        )  # fmt: skip

    def attend(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        pool = self._layers[layer]
        total = batch.segments[-1].last if batch.segments else batch.rows
        out = qkv.new_empty(len(qkv), self.q_width)
        out[total:] = 0
        if batch.rows:
            _kernels.decode_attention(
                self._bf16, qkv.data_ptr(), qkv.stride(0), out.data_ptr(),
                batch.page_table.data_ptr(), batch.page_table.stride(0), batch.lengths.data_ptr(),
                batch.rows, self.config.heads, self.scale, torch.get_num_threads(), pool,
            )  # fmt: skip
        for segment in batch.segments:
            length = segment.history + segment.last - segment.first
            keys = qkv.new_empty(self.config.kv_heads, length, self.config.head_dim)
            values = torch.empty_like(keys)
            _kernels.gather(
                self._bf16, keys.data_ptr(), values.data_ptr(), segment.pages.data_ptr(), length,
                pool,
            )  # fmt: skip
            q = self._heads(qkv[segment.first : segment.last])
            if self._wide:
                q, keys, values = q.float(), keys.float(), values.float()
            out[segment.first : segment.last] = attend_segment(q, keys, values, segment)
        return out


class TorchAttention(_Backend):
    """The same in plain torch operations: any device, and what the CPU kernels are tested by."""

    def store(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> None:
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        used = len(batch.slots)
        by_head = qkv[:used].view(used, heads + 2 * kv_heads, dim)
        rotated = by_head[:, : heads + kv_heads]
        cos = self.cos[batch.positions][:, None]
        sin = self.sin[batch.positions][:, None]
        low, high = rotated.float().chunk(2, dim=-1)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
        by_head[:, : heads + kv_heads] = turned.to(qkv.dtype)
        page = batch.slots // self.page_tokens
        offset = batch.slots % self.page_tokens
        self.pool[layer][page, :, 0, offset] = by_head[:, heads : heads + kv_heads]
        self.pool[layer][page, :, 1, offset] = by_head[:, heads + kv_heads :]

    def attend(self, layer: int, qkv: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        parts = []
        for row in range(batch.rows):
            keys, values = self._gather(layer, batch.page_table[row], int(batch.lengths[row]))
            alone = Segment(row, row + 1, len(keys[0]) - 1, batch.page_table[row], None)
            zero = torch.zeros(1, len(keys[0]), dtype=qkv.dtype, device=qkv.device)
            q = self._heads(qkv[row : row + 1])
            parts.append(attend_segment(q, keys, values, replace(alone, mask=zero)))
        for segment in batch.segments:
            length = segment.history + segment.last - segment.first
            keys, values = self._gather(layer, segment.pages, length)
            q = self._heads(qkv[segment.first : segment.last])
            parts.append(attend_segment(q, keys, values, segment))
        padding = len(qkv) - sum(map(len, parts))
        return torch.cat([*parts, qkv.new_zeros(padding, self.q_width)])

    def _gather(
        self, layer: int, pages: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        used = pages[: -(-length // self.page_tokens)].long()
        taken = self.pool[layer][used]  # [pages, K, 2, page_tokens, D]
        planes = taken.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
        return planes[:, 0], planes[:, 1]


def make_attention(
    config: ModelConfig, layout: PoolLayout, pool: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor,
) -> PagedAttention:  # fmt: skip
    """CPU kernels for float32 and bfloat16 on the CPU, plain torch otherwise and for shapes that
    the kernels have no room for (see attention.cpp)."""
    on_cpu = pool.device.type == "cpu" and pool.dtype in (torch.float32, torch.bfloat16)
    group = config.heads // config.kv_heads
    fits = group <= 16 and config.head_dim <= 256
    backend = CpuAttention if on_cpu and fits else TorchAttention
    return backend(config, layout, pool, cos, sin)

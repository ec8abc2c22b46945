"""Turns a step into tensors, runs the model, and samples."""

from __future__ import annotations

from collections.abc import Callable

import torch

from relevo.engine.attention import AttentionBatch, Segment, causal_mask, make_attention
from relevo.engine.models.decoder import Decoder
from relevo.engine.models.rope import rope_tables
from relevo.engine.sampler import sample
from relevo.engine.scheduler import Chunk, Step
from relevo.engine.sequence import Sequence
from relevo.kv.layout import PoolLayout

LayerDone = Callable[[], object]


def padded(rows: int) -> int:
    """Steps of many rows are padded to few shapes: libraries compile a kernel for every new one,
    which costs a millisecond and 0.7 MiB each, while a few idle rows among many cost nothing. Those
    of few rows go through our own product (see linear.py), which has no shapes."""
    return rows if rows <= 16 else -(-rows // 16) * 16


class Runner:
    """One model and its pool on one device. `pool` is uint8 [layout.bytes] on that device and
    belongs to the caller, who keeps it alive."""

    def __init__(
        self, model: Decoder, layout: PoolLayout, pool: torch.Tensor, context: int
    ) -> None:
        config = model.config
        self.model = model
        self.device = pool.device
        self.page_tokens = layout.groups[0].page_tokens
        shape = (
            config.layers, layout.pages, config.kv_heads, 2, self.page_tokens, config.head_dim,
        )  # fmt: skip
        self._pool = pool.view(model.embedding.dtype).view(shape)
        cos, sin = rope_tables(config, context, self.device)
        self._attention = make_attention(config, layout, self._pool, cos, sin)

    @torch.inference_mode()
    def logits(self, step: Step, layer_done: LayerDone | None = None) -> torch.Tensor | None:
        """[decodes, vocabulary], or None where nothing decodes. The pool has the new keys and
        values afterwards."""
        tokens, batch = self._batch(step)
        return self.model.forward(tokens, self._attention, batch, layer_done)

    @torch.inference_mode()
    def run(self, step: Step, layer_done: LayerDone | None = None) -> list[int]:
        """The next token of each of the step's `decodes`."""
        logits = self.logits(step, layer_done)
        if logits is None:
            return []
        samplings = [s.sampling for s in step.decodes if s.sampling is not None]
        return sample(logits, samplings, [len(s.tokens) for s in step.decodes])

    def _batch(self, step: Step) -> tuple[torch.Tensor, AttentionBatch]:
        tokens = [s.tokens[-1] for s in step.decodes]
        positions = [len(s.tokens) - 1 for s in step.decodes]
        slots = [
            self._slot(s, position) for s, position in zip(step.decodes, positions, strict=True)
        ]
        segments: list[Segment] = []
        for chunk in step.chunks:
            segments.append(self._segment(chunk, len(tokens)))
            tokens += chunk.sequence.tokens[chunk.first : chunk.last]
            positions += range(chunk.first, chunk.last)
            slots += [self._slot(chunk.sequence, p) for p in range(chunk.first, chunk.last)]
        longest = max((len(s.pages) for s in step.decodes), default=0)
        table = [s.pages + [0] * (longest - len(s.pages)) for s in step.decodes]
        lengths = [len(s.tokens) for s in step.decodes]
        batch = AttentionBatch(
            rows=len(step.decodes),
            kept=min(padded(len(step.decodes)), padded(len(tokens))),
            positions=self._tensor(positions, torch.int64),
            slots=self._tensor(slots, torch.int64),
            page_table=self._tensor(table, torch.int32).view(len(table), longest),
            lengths=self._tensor(lengths, torch.int32),
            segments=tuple(segments),
        )
        tokens += [0] * (padded(len(tokens)) - len(tokens))
        return self._tensor(tokens, torch.int64), batch

    def _segment(self, chunk: Chunk, first_row: int) -> Segment:
        count = chunk.last - chunk.first
        pages = chunk.sequence.pages[: -(-chunk.last // self.page_tokens)]
        mask = causal_mask(count, chunk.first, self._pool.dtype, self.device)
        return Segment(
            first_row, first_row + count, chunk.first, self._tensor(pages, torch.int32), mask
        )

    def _slot(self, sequence: Sequence, position: int) -> int:
        page = sequence.pages[position // self.page_tokens]
        return page * self.page_tokens + position % self.page_tokens

    def _tensor(self, values: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

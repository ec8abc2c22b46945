"""The embedded engine: sequences go in, tokens come out, one step at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from relevo.engine.models.config import ModelConfig
from relevo.engine.models.decoder import Decoder
from relevo.engine.models.weights import Progress, load_weights
from relevo.engine.page_pool import PagePool
from relevo.engine.runner import LayerDone, Runner
from relevo.engine.scheduler import Chunk, Scheduler, Step
from relevo.engine.sequence import Sequence
from relevo.errors import ConfigError
from relevo.kv.layout import PoolLayout, embedded_layout
from relevo.kv.shards import heads_of_rank
from relevo.types import FinishReason

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. `pool_bytes` is the size of its KV pool (rounded down to pages);
    `step_tokens` bounds a step's tokens: a longer prompt is computed in chunks."""

    model: Path
    cache: Path
    dtype: str = "bfloat16"
    device: str = "cpu"
    threads: int = 1
    pool_bytes: int = 200 << 20
    page_tokens: int = 16
    step_tokens: int = 2048
    max_running: int = 64
    local_prefill_tokens: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError("dtype", f"{self.dtype!r} is none of {', '.join(DTYPES)}")
        for key in ("threads", "page_tokens", "step_tokens", "max_running"):
            if getattr(self, key) < 1:
                raise ConfigError(key.replace("_", "-"), f"{getattr(self, key)} is below 1")
        if self.local_prefill_tokens < 0:
            raise ConfigError("local-prefill-tokens", f"{self.local_prefill_tokens} is below 0")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError("device", f"{self.device!r}: this machine, or this build of torch, "
                              "has only the CPU")  # fmt: skip


@dataclass(frozen=True)
class Generated:
    """A sequence's new token. `finish` is set with its last."""

    sequence: Sequence
    token: int
    finish: FinishReason | None


class Engine:
    """Owned by one thread. `allocate(name, bytes)` provides the pool's memory as uint8: whoever
    hands pages to other processes gives memory that they can map."""

    def __init__(
        self,
        config: EngineConfig,
        allocate: Callable[[str, int], npt.NDArray[np.uint8]],
        progress: Progress = lambda what, fraction: None,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.model_config, weights = load_weights(
            config.model, config.cache, DTYPES[config.dtype], progress
        )
        self.layout = _layout(config, self.model_config)
        # The last page of every sequence may be one that it has no token for yet.
        self.context = min(self.model_config.context, (self.layout.pages - 1) * config.page_tokens)
        device = torch.device(config.device)
        if device.type == "cpu":
            pool = torch.from_numpy(allocate("relevo-pool", self.layout.bytes))
        else:
            weights = {name: tensor.to(device) for name, tensor in weights.items()}
            pool = torch.empty(self.layout.bytes, dtype=torch.uint8, device=device)
        self.fingerprint = _fingerprint(self.model_config, weights, config.dtype)
        decoder = Decoder(self.model_config, weights)
        self.runner = Runner(decoder, self.layout, pool, self.context)
        self.pool = PagePool(self.layout.pages)
        self.scheduler = Scheduler(
            self.pool,
            page_tokens=config.page_tokens,
            step_tokens=config.step_tokens,
            max_running=config.max_running,
            local_prefill_tokens=config.local_prefill_tokens,
        )

    def warm_up(self) -> None:
        """Runs a prompt and a decode step once, so that the first request does not pay for what
        the libraries set up lazily. Leaves nothing in the pool's books."""
        pages = self.pool.allocate(1)
        assert pages is not None
        count = min(8, self.config.page_tokens)
        sequence = Sequence("warm-up", [0] * count, None)
        sequence.pages = pages
        self.runner.logits(Step((), (Chunk(sequence, 0, count),)))
        self.runner.logits(Step((sequence,), ()))
        self.pool.release(pages)

    def run(self, step: Step, layer_done: LayerDone | None = None) -> list[Generated]:
        """Computes a step and commits it: tokens appended, pages findable, ended ones removed."""
        tokens = self.runner.run(step, layer_done) if step.computes else []
        for chunk in step.chunks:
            chunk.sequence.computed = chunk.last
            self.scheduler.publish(chunk.sequence)
        generated: list[Generated] = []
        for sequence, token in zip(step.decodes, tokens, strict=True):
            sequence.computed = len(sequence.tokens)
            self.scheduler.publish(sequence)
            sequence.tokens.append(token)
            sequence.finish = self._finish(sequence, token)
            if sequence.finish is not None:
                self.scheduler.remove(sequence)
            generated.append(Generated(sequence, token, sequence.finish))
        return generated

    def _finish(self, sequence: Sequence, token: int) -> FinishReason | None:
        assert sequence.sampling is not None
        if token in sequence.sampling.stop_token_ids:
            return FinishReason.STOP
        at_end = len(sequence.tokens) >= self.context
        if sequence.generated >= sequence.sampling.max_tokens or at_end:
            return FinishReason.LENGTH
        return None


def _fingerprint(config: ModelConfig, weights: Mapping[str, torch.Tensor], dtype: str) -> str:
    """Names what two workers must have in common: configuration, dtype and (by samples) weights."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(msgspec.json.encode(config) + dtype.encode())
    for name in ("embedding", "layers.0.qkv", f"layers.{config.layers - 1}.down", "norm"):
        digest.update(weights[name].flatten()[:1024].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _layout(config: EngineConfig, model: ModelConfig) -> PoolLayout:
    heads = heads_of_rank(0, 1, model.kv_heads)
    dtype_bytes = DTYPES[config.dtype].itemsize
    token_bytes = model.layers * heads.count * 2 * model.head_dim * dtype_bytes
    page_bytes = token_bytes * config.page_tokens
    pages = config.pool_bytes // page_bytes
    if pages < 2:
        raise ConfigError(
            "kv-memory",
            f"{config.pool_bytes} bytes hold {pages} pages of {page_bytes} bytes; 2 are the least",
        )
    return embedded_layout(
        layers=model.layers,
        pages=pages,
        page_tokens=config.page_tokens,
        heads=heads,
        head_dim=model.head_dim,
        dtype=config.dtype,
        dtype_bytes=dtype_bytes,
    )

"""vLLM's KV caches, described as a pool that others can write into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from relevo.errors import ConfigError
from relevo.kv.layout import LayerGroup, PoolLayout
from relevo.kv.shards import HeadRange


@dataclass(frozen=True)
class Caches:
    """Tensors by layer, in the order in which the forward pass fills them, each
    [blocks, ...one block of this layer]; `interior` says how a block lies inside, `heads` are its
    KV heads."""

    tensors: Mapping[str, torch.Tensor]
    page_tokens: int
    heads: int
    interior: str

    def storages(self) -> list[tuple[int, int]]:
        """(address, bytes) of the memory behind the tensors, each once, by address."""
        found = {}
        for tensor in self.tensors.values():
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return sorted(found.items())

    def layout(self, region: int, starts: Mapping[int, int]) -> PoolLayout:
        """`starts`: where the storage at each address begins in the region. Raises ConfigError
        where a block is not one piece of memory, or differs between layers."""
        first = next(iter(self.tensors.values()))
        block_bytes = first[0].numel() * first.element_size()
        stride = first.stride(0) * first.element_size()
        offsets: list[int] = []
        for name, tensor in self.tensors.items():
            if not tensor[0].is_contiguous():
                raise ConfigError("kv cache", f"blocks of {name} are not contiguous")
            if (tensor.shape, tensor.stride()) != (first.shape, first.stride()):
                raise ConfigError(
                    "kv cache",
                    f"{name} is {tuple(tensor.shape)}, other layers are {tuple(first.shape)}; "
                    "only models whose layers share one geometry can be handed off",
                )
            address = tensor.untyped_storage().data_ptr()
            offsets.append(starts[address] + tensor.data_ptr() - address)
        group = LayerGroup(
            layers=tuple(range(len(offsets))),
            kind="attention",
            page_tokens=self.page_tokens,
            page_bytes=block_bytes,
            page_stride=stride,
            layer_offsets=tuple(offsets),
            heads=HeadRange(0, self.heads, self.heads),
            interior=self.interior,
        )
        return PoolLayout(region=region, pages=first.shape[0], groups=(group,))

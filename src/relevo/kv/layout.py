"""How a KV pool lies in memory, described so that another process can write into it.

See docs/kv-layout.md.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from relevo.errors import LayoutMismatch
from relevo.kv.shards import HeadRange


class LayerGroup(msgspec.Struct, frozen=True):
    """Layers whose pages have one geometry.

    `layer_offsets` are bytes from the start of the region to page 0 of each layer;
    `page_stride` is bytes from a page of a layer to its next. A page of one layer is
    `[head][K,V][token][dim]`: `head_bytes` per head, heads in the order of `heads`.
    """

    layers: tuple[int, ...]
    kind: Literal["attention", "latent"]
    page_tokens: int
    page_bytes: int
    page_stride: int
    layer_offsets: tuple[int, ...]
    heads: HeadRange
    interior: str

    @property
    def head_bytes(self) -> int:
        return self.page_bytes // self.heads.count


class PoolLayout(msgspec.Struct, frozen=True):
    """A worker's KV pool: all groups share page ids 0 .. pages - 1."""

    region: int
    pages: int
    groups: tuple[LayerGroup, ...]

    @property
    def bytes(self) -> int:
        """Size of the region that holds the pool."""
        return max(
            offset + (self.pages - 1) * group.page_stride + group.page_bytes
            for group in self.groups
            for offset in group.layer_offsets
        )

    @property
    def layer_count(self) -> int:
        return sum(len(group.layers) for group in self.groups)


def embedded_layout(
    *,
    layers: int,
    pages: int,
    page_tokens: int,
    heads: HeadRange,
    head_dim: int,
    dtype: str,
    dtype_bytes: int,
    region: int = 0,
) -> PoolLayout:
    """The embedded engine's pool: one contiguous region, `[layer][page][head][K,V][token][dim]`."""
    page_bytes = heads.count * 2 * page_tokens * head_dim * dtype_bytes
    group = LayerGroup(
        layers=tuple(range(layers)),
        kind="attention",
        page_tokens=page_tokens,
        page_bytes=page_bytes,
        page_stride=page_bytes,
        layer_offsets=tuple(layer * pages * page_bytes for layer in range(layers)),
        heads=heads,
        interior=f"head-major/kv/dim{head_dim}/{dtype}",
    )
    return PoolLayout(region=region, pages=pages, groups=(group,))


def check_compatible(source: PoolLayout, destination: PoolLayout) -> None:
    """Raises LayoutMismatch, naming both sides' values, unless pages can be copied as they are."""
    if len(source.groups) != len(destination.groups):
        raise LayoutMismatch(
            f"layer groups: prefill worker has {len(source.groups)}, "
            f"decode worker {len(destination.groups)}"
        )
    for ours, theirs in zip(source.groups, destination.groups, strict=True):
        for field in ("layers", "kind", "page_tokens", "interior", "head_bytes"):
            a, b = getattr(ours, field), getattr(theirs, field)
            if a != b:
                raise LayoutMismatch(f"{field}: prefill worker has {a}, decode worker {b}")
        if len(theirs.layer_offsets) != len(theirs.layers) or theirs.heads.count < 1:
            raise LayoutMismatch(f"the decode worker's layout contradicts itself: {theirs}")
        if ours.heads.total != theirs.heads.total:
            raise LayoutMismatch(
                f"KV heads: prefill worker has {ours.heads.total}, "
                f"decode worker {theirs.heads.total}"
            )

"""Checksums of pages as they lie in a pool: what was sent against what has arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from relevo.kv.layout import PoolLayout
from relevo.wire.messages import CHECKSUM_BYTES, by_layer


def layer_checksums(
    memory: npt.NDArray[np.uint8], layout: PoolLayout, pages: Sequence[int]
) -> bytes:
    """XXH3-64 of each layer's part of `pages`, in their order; layers in the order of the layer
    counter, CHECKSUM_BYTES each. Both sides' pages must hold the same heads."""
    view = memory.data
    sums: list[bytes] = []
    for group in layout.groups:
        contiguous = group.page_stride == group.page_bytes
        runs = list(_runs(pages)) if contiguous else [(page, 1) for page in pages]
        for offset in group.layer_offsets:
            digest = xxhash.xxh3_64()
            for first, count in runs:
                at = offset + first * group.page_stride
                digest.update(view[at : at + count * group.page_bytes])
            sums.append(digest.digest())
    return b"".join(sums)


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first page, how many that follow each other)."""
    first = count = 0
    for page in pages:
        if count and page == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = page, 1
    if count:
        yield first, count


def differing_layers(sent: bytes, arrived: bytes) -> list[int]:
    """Layers whose checksums differ; all of them where the numbers of layers do."""
    if len(sent) != len(arrived):
        return list(range(max(len(sent), len(arrived)) // CHECKSUM_BYTES))
    pairs = zip(by_layer(sent), by_layer(arrived), strict=True)
    return [layer for layer, (one, other) in enumerate(pairs) if one != other]

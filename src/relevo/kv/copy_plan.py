"""Which bytes of a page go from which source rank to which destination rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from relevo.kv.shards import HeadRange


class PageCopy(NamedTuple):
    """`length` bytes at `source_offset` of a page on one rank → `destination_offset` on another."""

    source_rank: int
    destination_rank: int
    source_offset: int
    destination_offset: int
    length: int


def copies_for(
    sources: Mapping[int, HeadRange],
    destination_rank: int,
    destination: HeadRange,
    head_bytes: int,
) -> list[PageCopy]:
    """Fills a destination rank's page from a replica set of source ranks, each head once.

    `head_bytes` is a page's bytes per head (K and V), the same on both sides. Raises ValueError
    if the sources do not hold a head that the destination needs.
    """
    copies: list[PageCopy] = []
    filled = destination.first
    for rank, held in sorted(sources.items(), key=lambda item: item[1].first):
        heads = held.overlap(destination)
        heads = range(max(heads.start, filled), heads.stop)
        if len(heads) == 0:
            continue
        if heads.start != filled:
            break
        copies.append(
            PageCopy(
                rank,
                destination_rank,
                (heads.start - held.first) * head_bytes,
                (heads.start - destination.first) * head_bytes,
                len(heads) * head_bytes,
            )
        )
        filled = heads.stop
    if filled != destination.end:
        raise ValueError(f"no source rank holds KV head {filled}, wanted for {destination}")
    return copies

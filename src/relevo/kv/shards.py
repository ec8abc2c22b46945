"""Which KV heads a tensor-parallel rank holds."""

from __future__ import annotations

import msgspec


class HeadRange(msgspec.Struct, frozen=True):
    """KV heads `first .. first + count - 1` of a model's `total`."""

    first: int
    count: int
    total: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def overlap(self, other: HeadRange) -> range:
        """The heads that both hold."""
        return range(max(self.first, other.first), min(self.end, other.end))


def heads_of_rank(rank: int, ranks: int, kv_heads: int) -> HeadRange:
    """Split evenly when `ranks` divides `kv_heads`; replicated in groups when it is a multiple.

    Raises ValueError, with both numbers, for anything else.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of {ranks} ranks")
    if kv_heads % ranks == 0:
        count = kv_heads // ranks
        return HeadRange(rank * count, count, kv_heads)
    if ranks % kv_heads == 0:
        return HeadRange(rank // (ranks // kv_heads), 1, kv_heads)
    raise ValueError(f"{ranks} ranks neither divide nor are a multiple of {kv_heads} KV heads")


def replica_sets(ranks: int, kv_heads: int) -> list[tuple[int, ...]]:
    """Smallest groups of ranks that together hold a whole KV cache, in rank order."""
    copies = max(1, ranks // kv_heads)
    return [tuple(range(copy, ranks, copies)) for copy in range(copies)]

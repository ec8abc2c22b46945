"""Hands out page numbers, in runs as long as there are: contiguous pages travel in one write."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable


class PageAllocator:
    """Free pages as sorted, disjoint, non-adjacent runs. Not thread-safe: one owner."""

    def __init__(self, pages: int) -> None:
        self._starts: list[int] = [0] if pages else []
        self._lengths: dict[int, int] = {0: pages} if pages else {}
        self._free = pages

    @property
    def free(self) -> int:
        """How many pages are free."""
        return self._free

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None if there are not so many.

        From the shortest run that holds them all; else the longest runs first.
        """
        if count > self._free:
            return None
        pages: list[int] = []
        while len(pages) < count:
            wanted = count - len(pages)
            start = self._best_run(wanted)
            pages += self._take(start, min(wanted, self._lengths[start]))
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Pages are free again. Raises ValueError for one that is free already."""
        for page in pages:
            self._put(page)

    def _best_run(self, wanted: int) -> int:
        fitting = [s for s in self._starts if self._lengths[s] >= wanted]
        if fitting:
            return min(fitting, key=lambda s: self._lengths[s])
        return max(self._starts, key=lambda s: self._lengths[s])

    def _take(self, start: int, count: int) -> range:
        length = self._lengths.pop(start)
        index = bisect_left(self._starts, start)
        if length == count:
            del self._starts[index]
        else:
            self._starts[index] = start + count
            self._lengths[start + count] = length - count
        self._free -= count
        return range(start, start + count)

    def _put(self, page: int) -> None:
        index = bisect_left(self._starts, page)
        before = self._starts[index - 1] if index else None
        after = self._starts[index] if index < len(self._starts) else None
        if after == page or (before is not None and before + self._lengths[before] > page):
            raise ValueError(f"page {page} is free already")
        length = 1
        if after == page + 1:
            length += self._lengths.pop(after)
            del self._starts[index]
        if before is not None and before + self._lengths[before] == page:
            self._lengths[before] += length
        else:
            self._starts.insert(index, page)
            self._lengths[page] = length
        self._free += 1

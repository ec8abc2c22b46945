"""Pages with owners: reference counts, the prefix cache, eviction of the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from relevo.kv.allocator import PageAllocator
from relevo.kv.hashes import PageHash


class PagePool:
    """Page numbers of one worker. Not thread-safe: owned by the engine loop.

    A page is free, owned (references > 0), or cached (no reference, findable by its hash, first
    to be evicted when least recently released).
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._allocator = PageAllocator(pages)
        self._references: dict[int, int] = {}
        self._hash_of: dict[int, PageHash] = {}
        self._page_of: dict[PageHash, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that `allocate` could hand out, evicting all that is cached."""
        return self._allocator.free + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def owned(self) -> int:
        return len(self._references)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages with one reference each, or None and nothing changed."""
        if count > self.available:
            return None
        while self._allocator.free < count:
            self._evict()
        pages = self._allocator.allocate(count)
        assert pages is not None
        self._references.update(dict.fromkeys(pages, 1))
        return pages

    def match(self, hashes: Sequence[PageHash]) -> list[int]:
        """The longest known prefix of `hashes`; each page gets a reference."""
        pages: list[int] = []
        for page_hash in hashes:
            page = self._page_of.get(page_hash)
            if page is None:
                break
            self._cached.pop(page, None)
            self._references[page] = self._references.get(page, 0) + 1
            pages.append(page)
        return pages

    def publish(self, page: int, page_hash: PageHash) -> None:
        """Makes an owned, full and committed page findable. A hash that is known stays where it
        is: the first page with it serves."""
        assert page in self._references
        if page_hash not in self._page_of and page not in self._hash_of:
            self._page_of[page_hash] = page
            self._hash_of[page] = page_hash

    def release(self, pages: Iterable[int]) -> None:
        """Gives one reference of each back. Later pages of a chain become cached first, so that
        they are evicted before what they depend on."""
        for page in reversed(list(pages)):
            left = self._references[page] - 1
            if left:
                self._references[page] = left
                continue
            del self._references[page]
            if page in self._hash_of:
                self._cached[page] = None
            else:
                self._allocator.release([page])

    def _evict(self) -> None:
        page, _ = self._cached.popitem(last=False)
        del self._page_of[self._hash_of.pop(page)]
        self._allocator.release([page])

"""Chained page hashes: a page's hash names its tokens and everything before them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

PageHash = bytes


def page_hashes(tokens: Sequence[int], page_tokens: int) -> list[PageHash]:
    """One 16-byte hash per *full* page of `tokens`, each chained to the one before."""
    hashes: list[PageHash] = []
    parent = b""
    for end in range(page_tokens, len(tokens) + 1, page_tokens):
        page = array("I", tokens[end - page_tokens : end]).tobytes()
        parent = hashlib.blake2b(parent + page, digest_size=16).digest()
        hashes.append(parent)
    return hashes


def pages_for(tokens: int, page_tokens: int) -> int:
    """How many pages `tokens` tokens take."""
    return -(-tokens // page_tokens)

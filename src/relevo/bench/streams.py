"""Reads a recorded stream of the OpenAI API: which chunks carried tokens, and how many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StreamSeen:
    """`counts`: tokens of each chunk that carried any, beside its arrival in ns. `finished`: a
    finish reason came; `counted`: the counts are the server's own, or add up to its."""

    id: str = ""
    arrivals_ns: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    finished: bool = False
    counted: bool = True
    error: str = ""


def read_stream(lines: Sequence[tuple[int, bytes]]) -> StreamSeen:
    """`lines`: each `data:` line with its arrival. A chunk that opens a chat, ends a stream or
    reports usage carries no token. Where chunks do not say how many tokens they carry, one that
    has text counts as one; if usage then tells of more, the rest is dealt out evenly."""
    seen = StreamSeen()
    exact = True
    total: int | None = None
    for at_ns, line in lines:
        content = line[5:].strip()
        if content == b"[DONE]":
            break
        try:
            chunk = json.loads(content)
        except ValueError:
            seen.error = f"a chunk is not JSON: {content[:80]!r}"
            return seen
        error = chunk.get("error")
        if error:
            seen.error = str(error.get("message", error) if isinstance(error, dict) else error)
            return seen
        seen.id = seen.id or str(chunk.get("id", ""))
        usage = chunk.get("usage")
        if usage:
            total = int(usage["completion_tokens"])
        for choice in chunk.get("choices", ()):
            count, known = _tokens_of(choice)
            exact = exact and known
            if count:
                seen.arrivals_ns.append(at_ns)
                seen.counts.append(count)
            if choice.get("finish_reason"):
                seen.finished = True
    seen.counted = exact or total is not None
    if not exact and total is not None and total > sum(seen.counts) > 0:
        seen.counts = _dealt(total, len(seen.counts))
    return seen


def _tokens_of(choice: dict[str, Any]) -> tuple[int, bool]:
    """(tokens, whether the chunk says so)."""
    ids = choice.get("token_ids")
    if ids is not None:
        return len(ids), True
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return (1 if text else 0), False


def _dealt(total: int, chunks: int) -> list[int]:
    share, rest = divmod(total, chunks)
    return [share + (index < rest) for index in range(chunks)]

"""Conversations as in ShareGPT: a JSON array or JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relevo.bench.trace_rows import parse_json, refused

TokenCounter = Callable[[str], int]


def read_conversations(path: Path, text: str, count: TokenCounter) -> list[list[tuple[int, int]]]:
    """Of each its turns, as `_turn` has them."""
    turns: list[list[tuple[int, int]]] = []
    for line, item in _items(path, text):
        said = item.get("conversations", item.get("messages")) if isinstance(item, dict) else None
        if not isinstance(said, list):
            raise refused(path, line, "neither 'conversations' nor 'messages' with a list")
        turns.append([_turn(path, line, turn, count) for turn in said])
    return turns


def _turn(path: Path, line: int, turn: object, count: TokenCounter) -> tuple[int, int]:
    """(seed, tokens), by whom: negative tokens are the assistant's."""
    if isinstance(turn, dict):
        who, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if isinstance(who, str) and isinstance(text, str):
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())
            tokens = count(text)
            return seed, -tokens if who in ("gpt", "assistant", "chatgpt", "model") else tokens
    raise refused(path, line, "a turn without 'from' and 'value' (or 'role' and 'content')")


def _items(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """(line, item) of a JSON array or of JSON lines."""
    start = len(text) - len(text.lstrip())
    if text[start] == "{":
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield line, parse_json(path, line, content)
        return
    decoder, at = json.JSONDecoder(), start + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        line = text.count("\n", 0, at) + 1
        if at >= len(text):
            raise refused(path, line, "the list has no end; truncated?")
        if text[at] == "]":
            return
        try:
            item, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise refused(path, error.lineno, f"not valid JSON: {error.msg}; truncated?") from error
        yield line, item

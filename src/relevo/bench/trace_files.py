"""Reads public trace formats: Azure LLM inference 2023 and 2024, Mooncake, BurstGPT, and
conversations as in ShareGPT. A bad row is refused with file, line and reason; what can be put
right without guessing is, and noted."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from relevo.bench.trace import Arrival, Segment, Trace
from relevo.bench.workloads import Process, start_conversations
from relevo.errors import ConfigError

MOONCAKE_BLOCK = 512  # tokens that a hash id stands for
# Prompts that share nothing have seeds of their own, above all ids in the files.
_OWN_SEED = 1 << 48
TokenCounter = Callable[[str], int]
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


def read_trace(path: Path, count_tokens: TokenCounter, starts: Process, seed: int = 0) -> Trace:
    """The format is seen from the content. `count_tokens` measures texts, and `starts` says when
    conversations begin, by `seed`, for files that have neither lengths nor times. Raises
    ConfigError naming file, line and reason."""
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            text = file.read()
    except OSError as error:
        raise ConfigError("trace", f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("trace", f"{path}: {error}") from error
    stripped = text.lstrip()
    if not stripped:
        _refuse(path, 1, "the file is empty")
    if stripped.startswith('{"name":'):
        return _own(path, stripped)
    if stripped[0] not in "[{":
        return _table(path, text)
    if stripped[0] == "{" and '"hash_ids"' in stripped.partition("\n")[0]:
        return _mooncake(path, text)
    turns = _conversations(path, text, count_tokens)
    return start_conversations(f"conversations:{path.stem}", turns, starts, seed)


def _own(path: Path, text: str) -> Trace:
    try:
        return Trace.from_bytes(text.encode())
    except msgspec.MsgspecError as error:
        _refuse(path, 1, f"not one of our arrival lists: {error}")


def _refuse(path: Path, line: int, reason: str) -> NoReturn:
    raise ConfigError("trace", f"{path}, line {line}: {reason}")


class _Rows:
    """Collects arrivals; drops those without tokens and sorts, and notes that it did."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[tuple[float, tuple[Segment, ...], int]] = []
        self._empty = 0

    def add(self, at_s: float, prompt: tuple[Segment, ...], output: int) -> None:
        if output == 0 or not sum(segment.tokens for segment in prompt):
            self._empty += 1
        else:
            self._found.append((at_s, prompt, output))

    def own_prompt(self, tokens: int) -> tuple[Segment, ...]:
        return (Segment(_OWN_SEED + len(self._found), tokens),)

    def trace(self, path: Path) -> Trace:
        if not self._found:
            raise ConfigError("trace", f"{path}: no request with tokens on both sides")
        notes = []
        if self._empty:
            notes.append(f"{self._empty} requests without prompt or answer left out")
        times = [at for at, _, _ in self._found]
        if times != sorted(times):
            notes.append("rows were not in order of time; sorted")
            self._found.sort(key=lambda row: row[0])
        distinct = len(set(times))
        if distinct * 2 < len(times):
            notes.append(f"only {distinct} distinct times for {len(times)} requests, as recorded")
        first, last = min(times), max(times)
        arrivals = tuple(
            Arrival(round(at - first, 6), prompt, output) for at, prompt, output in self._found
        )
        # The last request is offered for as long as requests are apart on average.
        span = (last - first) * len(times) / max(1, len(times) - 1) or 1.0
        return Trace(self._name, arrivals, round(span, 6), notes=tuple(notes))


def _table(path: Path, text: str) -> Trace:
    lines = text.split("\n")
    header = next(csv.reader(lines[:1]), [])
    for kind, columns in (("azure", _AZURE), ("burstgpt", _BURSTGPT)):
        if columns[0] in header:
            missing = [column for column in columns if column not in header]
            if missing:
                _refuse(path, 1, f"no column {missing[0]!r}; it has {', '.join(header)}")
            return _csv(path, lines, header, kind, columns)
    _refuse(
        path, 1, f"the columns {', '.join(header)} are of no known trace; known are "
        f"{','.join(_AZURE)} (Azure) and {','.join(_BURSTGPT)},… (BurstGPT)",
    )  # fmt: skip


def _csv(
    path: Path, lines: list[str], header: list[str], kind: str, columns: tuple[str, ...]
) -> Trace:
    rows = _Rows(f"{kind}:{path.stem}")
    places = [header.index(column) for column in columns]
    reader = csv.reader(lines[1:], strict=True)
    try:
        for row in reader:
            if not row:
                continue
            line = reader.line_num + 1
            if len(row) != len(header):
                _refuse(path, line, f"{len(row)} columns instead of {len(header)}; truncated?")
            time, prompt, output = (row[place] for place in places)
            at = _clock(path, line, time) if kind == "azure" else _number(path, line, time)
            tokens = _count(path, line, columns[1], prompt)
            rows.add(at, rows.own_prompt(tokens), _count(path, line, columns[2], output))
    except csv.Error as error:
        _refuse(path, reader.line_num + 1, str(error))
    return rows.trace(path)


def _clock(path: Path, line: int, text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        _refuse(path, line, f"{text!r} is not a time such as 2023-11-16 18:17:03.9799600")
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e12:
        _refuse(path, line, f"{text!r} is not a time in seconds")
    return value


def _count(path: Path, line: int, column: str, text: object) -> int:
    try:
        value = int(text) if isinstance(text, str | int) else -1
    except ValueError:
        value = -1
    if value < 0:
        _refuse(path, line, f"{column}: {text!r} is not a number of tokens")
    return value


def _mooncake(path: Path, text: str) -> Trace:
    rows = _Rows(f"mooncake:{path.stem}")
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        row = _json(path, line, content)
        for key in ("timestamp", "input_length", "output_length", "hash_ids"):
            if not isinstance(row, dict) or key not in row:
                _refuse(path, line, f"no {key!r}")
        tokens = _count(path, line, "input_length", row["input_length"])
        ids = row["hash_ids"]
        blocks = -(-tokens // MOONCAKE_BLOCK)
        if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
            _refuse(path, line, "hash_ids is not a list of numbers")
        if len(ids) != blocks:
            _refuse(
                path, line, f"{len(ids)} hash_ids for {tokens} tokens; {MOONCAKE_BLOCK} tokens "
                f"each would be {blocks}",
            )  # fmt: skip
        rest = [min(MOONCAKE_BLOCK, tokens - i * MOONCAKE_BLOCK) for i in range(blocks)]
        prompt = tuple(Segment(id, n) for id, n in zip(ids, rest, strict=True))
        at = _number(path, line, str(row["timestamp"])) / 1e3
        rows.add(at, prompt, _count(path, line, "output_length", row["output_length"]))
    return rows.trace(path)


def _json(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        _refuse(path, line + error.lineno - 1, f"not valid JSON: {error.msg}; truncated?")


def _conversations(path: Path, text: str, count: TokenCounter) -> list[list[tuple[int, int]]]:
    """Of each its turns, as `_turn` has them."""
    turns: list[list[tuple[int, int]]] = []
    for line, item in _items(path, text):
        said = item.get("conversations", item.get("messages")) if isinstance(item, dict) else None
        if not isinstance(said, list):
            _refuse(path, line, "neither 'conversations' nor 'messages' with a list")
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
    _refuse(path, line, "a turn without 'from' and 'value' (or 'role' and 'content')")


def _items(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """(line, item) of a JSON array or of JSON lines."""
    start = len(text) - len(text.lstrip())
    if text[start] == "{":
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield line, _json(path, line, content)
        return
    decoder, at = json.JSONDecoder(), start + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        line = text.count("\n", 0, at) + 1
        if at >= len(text):
            _refuse(path, line, "the list has no end; truncated?")
        if text[at] == "]":
            return
        try:
            item, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            _refuse(path, error.lineno, f"not valid JSON: {error.msg}; truncated?")
        yield line, item

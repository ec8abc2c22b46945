"""Reads public trace formats: Azure LLM inference 2023 and 2024, Mooncake, BurstGPT, and
conversations as in ShareGPT. A bad row is refused with file, line and reason; what can be put
right without guessing is, and noted."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec

from relevo.bench.trace import Segment, Trace
from relevo.bench.trace_conversations import TokenCounter, read_conversations
from relevo.bench.trace_rows import Rows, clock, number, parse_json, refused, token_count
from relevo.bench.workloads import Process, start_conversations
from relevo.errors import ConfigError

MOONCAKE_BLOCK = 512  # tokens that a hash id stands for
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
        raise refused(path, 1, "the file is empty")
    if stripped.startswith('{"name":'):
        return _own(path, stripped)
    if stripped[0] not in "[{":
        return _table(path, text)
    if stripped[0] == "{" and '"hash_ids"' in stripped.partition("\n")[0]:
        return _mooncake(path, text)
    turns = read_conversations(path, text, count_tokens)
    return start_conversations(f"conversations:{path.stem}", turns, starts, seed)


def _own(path: Path, text: str) -> Trace:
    try:
        return Trace.from_bytes(text.encode())
    except msgspec.MsgspecError as error:
        raise refused(path, 1, f"not one of our arrival lists: {error}") from error


def _table(path: Path, text: str) -> Trace:
    lines = text.split("\n")
    header = next(csv.reader(lines[:1]), [])
    for kind, columns in (("azure", _AZURE), ("burstgpt", _BURSTGPT)):
        if columns[0] in header:
            missing = [column for column in columns if column not in header]
            if missing:
                raise refused(path, 1, f"no column {missing[0]!r}; it has {', '.join(header)}")
            return _csv(path, lines, header, kind, columns)
    raise refused(
        path, 1, f"the columns {', '.join(header)} are of no known trace; known are "
        f"{','.join(_AZURE)} (Azure) and {','.join(_BURSTGPT)},… (BurstGPT)",
    )  # fmt: skip


def _csv(
    path: Path, lines: list[str], header: list[str], kind: str, columns: tuple[str, ...]
) -> Trace:
    rows = Rows(f"{kind}:{path.stem}")
    places = [header.index(column) for column in columns]
    reader = csv.reader(lines[1:], strict=True)
    try:
        for row in reader:
            if not row:
                continue
            line = reader.line_num + 1
            if len(row) != len(header):
                raise refused(
                    path, line, f"{len(row)} columns instead of {len(header)}; truncated?"
                )
            time, prompt, output = (row[place] for place in places)
            at = clock(path, line, time) if kind == "azure" else number(path, line, time)
            tokens = token_count(path, line, columns[1], prompt)
            rows.add(at, rows.own_prompt(tokens), token_count(path, line, columns[2], output))
    except csv.Error as error:
        raise refused(path, reader.line_num + 1, str(error)) from error
    return rows.trace(path)


def _mooncake(path: Path, text: str) -> Trace:
    rows = Rows(f"mooncake:{path.stem}")
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        row = parse_json(path, line, content)
        for key in ("timestamp", "input_length", "output_length", "hash_ids"):
            if not isinstance(row, dict) or key not in row:
                raise refused(path, line, f"no {key!r}")
        tokens = token_count(path, line, "input_length", row["input_length"])
        ids = row["hash_ids"]
        blocks = -(-tokens // MOONCAKE_BLOCK)
        if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
            raise refused(path, line, "hash_ids is not a list of numbers")
        if len(ids) != blocks:
            raise refused(
                path, line, f"{len(ids)} hash_ids for {tokens} tokens; {MOONCAKE_BLOCK} tokens "
                f"each would be {blocks}",
            )  # fmt: skip
        rest = [min(MOONCAKE_BLOCK, tokens - i * MOONCAKE_BLOCK) for i in range(blocks)]
        prompt = tuple(Segment(id, n) for id, n in zip(ids, rest, strict=True))
        at = number(path, line, str(row["timestamp"])) / 1e3
        rows.add(at, prompt, token_count(path, line, "output_length", row["output_length"]))
    return rows.trace(path)

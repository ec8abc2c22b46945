"""What readers of traces share: fields that are checked, and rows that become arrivals. All raise
ConfigError naming file, line and reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relevo.bench.trace import Arrival, Segment, Trace
from relevo.errors import ConfigError

# Prompts that share nothing have seeds of their own, above all ids in the files.
_OWN_SEED = 1 << 48


def refused(path: Path, line: int, reason: str) -> ConfigError:
    return ConfigError("trace", f"{path}, line {line}: {reason}")


class Rows:
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


def clock(path: Path, line: int, text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        reason = f"{text!r} is not a time such as 2023-11-16 18:17:03.9799600"
        raise refused(path, line, reason) from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e12:
        raise refused(path, line, f"{text!r} is not a time in seconds")
    return value


def token_count(path: Path, line: int, column: str, text: object) -> int:
    try:
        value = int(text) if isinstance(text, str | int) else -1
    except ValueError:
        value = -1
    if value < 0:
        raise refused(path, line, f"{column}: {text!r} is not a number of tokens")
    return value


def parse_json(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"not valid JSON: {error.msg}; truncated?"
        raise refused(path, line + error.lineno - 1, reason) from error

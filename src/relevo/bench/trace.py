"""Arrival lists: when requests come, how long their prompts and answers are, and which prompts
begin alike. Pure values; files are read in `trace_files`, made up in `workloads`."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from relevo.errors import ConfigError


class Segment(NamedTuple):
    """A run of tokens that follows from its seed: prompts that begin with equal segments begin
    with equal tokens."""

    seed: int
    tokens: int


class Arrival(msgspec.Struct, frozen=True):
    """One request: `at_s` since the trace's begin, at least one token each way."""

    at_s: float
    prompt: tuple[Segment, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.prompt)


class Trace(msgspec.Struct, frozen=True):
    """Arrivals in order of time. `concurrency`: a closed loop of so many requests at once, whose
    arrivals' times mean nothing. `span_s`: how long requests are offered. `notes`: what was done
    to the source."""

    name: str
    arrivals: tuple[Arrival, ...]
    span_s: float
    concurrency: int | None = None
    notes: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The same bytes for the same trace."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Trace:
        return msgspec.json.decode(data, type=Trace)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def rate(self) -> float:
        """Requests per second; 0 for a closed loop."""
        return 0.0 if self.concurrency else len(self.arrivals) / self.span_s

    def window(self, begin_s: float, end_s: float) -> Trace:
        """The arrivals from `begin_s` up to `end_s`. Raises ConfigError where there are none."""
        kept = [a for a in self.arrivals if begin_s <= a.at_s < end_s]
        if not kept:
            raise ConfigError(
                "window", f"no request arrives from {begin_s:g} to {end_s:g} s; the trace has "
                f"{len(self.arrivals)} in {self.span_s:g} s",
            )  # fmt: skip
        span = min(end_s, self.span_s) - begin_s
        note = f"from {begin_s:g} to {begin_s + span:g} s"
        return self._with([_moved(a, a.at_s - begin_s) for a in kept], note, span_s=span)

    def opening(self, seconds: float, least: int) -> Trace:
        """The first seconds, or as long as it takes until this many requests have arrived."""
        if self.concurrency:
            return self._with(self.arrivals[:least])
        enough = self.arrivals[min(least, len(self.arrivals)) - 1].at_s + 1e-6
        return self.window(0, max(seconds, enough))

    def scaled_rate(self, factor: float) -> Trace:
        """`factor` times as many requests per second: times are divided."""
        check_positive("rate-scale", factor)
        arrivals = [_moved(a, a.at_s / factor) for a in self.arrivals]
        return self._with(arrivals, f"rate times {factor:g}", span_s=self.span_s / factor)

    def thinned(self, share: float, seed: int) -> Trace:
        """Keeps this share of the requests at their times, drawn by seed."""
        if not 0 < share <= 1:
            raise ConfigError("keep", f"{share:g} is not above 0 and at most 1")
        draw = random.Random(seed)
        kept = [a for a in self.arrivals if draw.random() < share]
        if not kept:
            raise ConfigError("keep", f"{share:g} of {len(self.arrivals)} requests leaves none")
        return self._with(kept, f"{share:.3g} of the requests, seed {seed}")

    def scaled_lengths(self, factor: float) -> Trace:
        """Prompts and answers `factor` times as long; equal beginnings stay equal."""
        check_positive("length-scale", factor)
        arrivals = (
            Arrival(
                a.at_s,
                tuple(Segment(s.seed, _scaled(s.tokens, factor)) for s in a.prompt),
                _scaled(a.output_tokens, factor),
            )
            for a in self.arrivals
        )
        return self._with(arrivals, f"lengths times {factor:g}")

    def fitted(self, context: int) -> Trace:
        """Cut to what a model of this context can take: answers to half of it, then the prompts'
        ends. A note says how many were cut."""
        fitted = [_fit(a, context) for a in self.arrivals]
        cut = sum(a != b for a, b in zip(fitted, self.arrivals, strict=True))
        note = f"{cut} of {len(fitted)} requests cut to a context of {context} tokens"
        return self._with(fitted, note if cut else "")

    def jittered(self, most_s: float, seed: int) -> Trace:
        """Each arrival up to `most_s` later, drawn by seed: for traces whose times are coarse."""
        draw = random.Random(seed)
        moved = [_moved(a, a.at_s + draw.uniform(0, most_s)) for a in self.arrivals]
        return self._with(
            sorted(moved, key=lambda a: a.at_s),
            f"arrivals moved by up to {most_s:g} s, seed {seed}",
            span_s=self.span_s + most_s,
        )

    def _with(
        self, arrivals: Iterable[Arrival], note: str = "", *, span_s: float | None = None
    ) -> Trace:
        return Trace(
            self.name,
            tuple(arrivals),
            self.span_s if span_s is None else span_s,
            self.concurrency,
            (*self.notes, note) if note else self.notes,
        )


def _moved(arrival: Arrival, at_s: float) -> Arrival:
    return Arrival(round(at_s, 6), arrival.prompt, arrival.output_tokens)


def _scaled(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))


def _fit(arrival: Arrival, context: int) -> Arrival:
    output = min(arrival.output_tokens, max(1, context // 2))
    room = context - output
    kept: list[Segment] = []
    for segment in arrival.prompt:
        tokens = min(segment.tokens, room)
        if tokens > 0:
            kept.append(Segment(segment.seed, tokens))
        room -= tokens
    return Arrival(arrival.at_s, tuple(kept), output)


def check_positive(key: str, value: float) -> None:
    """Raises ConfigError."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(key, f"{value:g} is not above 0")


def gap_cv(trace: Trace) -> float:
    """Coefficient of variation of the gaps between arrivals: 1 for Poisson; 0 for fewer than 3."""
    times = [a.at_s for a in trace.arrivals]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps) if len(gaps) > 1 else 0.0
    if mean == 0:
        return 0.0
    return math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps)) / mean

"""Made-up workloads: when requests arrive, and how long they are. The same for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.bench.trace import Arrival, Segment, Trace, check_positive
from relevo.errors import ConfigError

THINK_S = 4.0  # mean pause of a person between an answer's expected end and the next turn
_ANSWER_S_PER_TOKEN = 0.03  # how long an answer is expected to take, for the next turn's arrival
_SHARED_SEED = 1 << 56
_OWN_SEED = 1 << 52
_CHAT_TURNS = 4  # on average
Lengths = Callable[[random.Random, int], tuple[tuple[Segment, ...], int]]


@dataclass(frozen=True)
class Process:
    """Gamma-distributed gaps: `rate` requests per second, `cv` their coefficient of variation; 1 is
    Poisson, 0 even. Raises ConfigError."""

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rate", self.rate)
        if not 0 <= self.cv <= 100:
            raise ConfigError("cv", f"{self.cv:g} is not between 0 and 100")

    def gap(self, draw: random.Random) -> float:
        shape = 1 / self.cv**2 if self.cv else 0.0
        return draw.gammavariate(shape, 1 / (shape * self.rate)) if self.cv else 1 / self.rate

    def times(self, span_s: float, draw: random.Random) -> list[float]:
        """As many as the rate says, so that short traces too have the load that was asked for: a
        Poisson process that is known to bring n has its times evenly spread, which is what gaps
        scaled to the span are."""
        count = round(self.rate * span_s)
        if count < 1:
            raise ConfigError("rate", f"no request arrives within {span_s:g} s")
        ends = list(itertools.accumulate(self.gap(draw) for _ in range(count + 1)))
        return [round(end / ends[-1] * span_s, 6) for end in ends[:-1]]


def _own(index: int, tokens: int) -> Segment:
    return Segment(_OWN_SEED + index, tokens)


def _between(
    prompt: tuple[int, int], answer: tuple[int, int]
) -> Callable[[random.Random, int], tuple[tuple[Segment, ...], int]]:
    def lengths(draw: random.Random, index: int) -> tuple[tuple[Segment, ...], int]:
        return (_own(index, draw.randint(*prompt)),), draw.randint(*answer)

    return lengths


_short = _between((16, 128), (16, 64))
_long = _between((1000, 1500), (16, 64))


def _mixed(draw: random.Random, index: int) -> tuple[tuple[Segment, ...], int]:
    return (_long if draw.random() < 0.2 else _short)(draw, index)


def _rag(draw: random.Random, index: int) -> tuple[tuple[Segment, ...], int]:
    """One instruction for all, then what was found, then the question."""
    prompt = (Segment(_SHARED_SEED, 128), _own(index, draw.randint(900, 1500)))
    return prompt, draw.randint(4, 24)


def _streams(draw: random.Random, index: int) -> tuple[tuple[Segment, ...], int]:
    """Answers of some length; every other prompt is long beside them."""
    prompt = draw.randint(600, 800) if index % 2 else draw.randint(32, 64)
    return (_own(index, prompt),), draw.randint(70, 97)


# Chat's lengths are those of its turns.
WORKLOADS: dict[str, Lengths | None] = {
    "short": _short,
    "long": _long,
    "mixed": _mixed,
    "rag": _rag,
    "streams": _streams,
    "chat": None,
}


def make_workload(name: str, process: Process, span_s: float, seed: int) -> Trace:
    """An open loop: requests arrive whether or not others are done. Raises ConfigError."""
    check_positive("duration", span_s)
    lengths_of = _lengths_of(name)
    draw = random.Random(f"{name}/{seed}")
    if lengths_of is None:
        # The rate is that of requests, of which a conversation has several.
        starts = Process(process.rate / _CHAT_TURNS, process.cv)
        begins = len(starts.times(span_s, random.Random(0)))
        turns = [_chat(draw, index) for index in range(begins)]
        trace = start_conversations("chat", turns, starts, seed)
        return trace.window(0, span_s) if trace.span_s > span_s else trace
    times = process.times(span_s, draw)
    lengths = random.Random(f"{name}/{seed}/lengths")
    arrivals = (Arrival(at, *lengths_of(lengths, index)) for index, at in enumerate(times))
    return Trace(name, tuple(arrivals), span_s)


def make_closed_loop(name: str, concurrency: int, requests: int, seed: int) -> Trace:
    """`concurrency` requests at once, the next when one is done. Raises ConfigError."""
    lengths_of = _lengths_of(name)
    if lengths_of is None:
        raise ConfigError("concurrency", "chat has its own pace; give a rate")
    if concurrency < 1 or requests < 1:
        raise ConfigError("concurrency", f"{concurrency} at once of {requests} is less than one")
    lengths = random.Random(f"{name}/{seed}/lengths")
    drawn = (lengths_of(lengths, index) for index in range(requests))
    return Trace(name, tuple(Arrival(0.0, *d) for d in drawn), 1.0, concurrency)


def _lengths_of(name: str) -> Lengths | None:
    if name not in WORKLOADS:
        raise ConfigError("workload", f"{name!r} is none of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def _chat(draw: random.Random, index: int) -> list[tuple[int, int]]:
    turns: list[tuple[int, int]] = [(_SHARED_SEED, 48)]  # the system prompt
    for turn in range(draw.randint(_CHAT_TURNS - 2, _CHAT_TURNS + 2)):
        seed = _OWN_SEED + index * 64 + turn * 2
        turns += [(seed, draw.randint(16, 96)), (seed + 1, -draw.randint(16, 64))]
    return turns


def start_conversations(
    name: str, conversations: Sequence[Sequence[tuple[int, int]]], starts: Process, seed: int = 0
) -> Trace:
    """Turns are (seed, tokens), an assistant's with tokens below 0. Each of these becomes a request
    with all turns before it as its prompt; it arrives once the answer before it may be over and a
    person has thought. Raises ConfigError where there is nothing to ask."""
    draw = random.Random(f"{name}/{seed}/conversations")
    arrivals: list[Arrival] = []
    begin = 0.0
    for turns in conversations:
        begin += starts.gap(draw)
        at = begin
        said: list[Segment] = []
        for turn_seed, tokens in turns:
            if tokens < 0 and said:
                arrivals.append(Arrival(round(at, 6), tuple(said), -tokens))
                at += -tokens * _ANSWER_S_PER_TOKEN + draw.expovariate(1 / THINK_S)
            if tokens:
                said.append(Segment(turn_seed, abs(tokens)))
    if not arrivals:
        raise ConfigError("trace", f"{name}: no conversation has a question and an answer")
    arrivals.sort(key=lambda a: a.at_s)
    notes = (f"turns follow after {THINK_S:g} s of thought on average, seed {seed}",)
    span = arrivals[-1].at_s * len(arrivals) / max(1, len(arrivals) - 1) or 1.0
    return Trace(name, tuple(arrivals), round(span, 6), notes=notes)

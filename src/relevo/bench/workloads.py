"""Made-up workloads: when requests arrive, and how long they are. The same for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from relevo.bench.trace import Arrival, Segment, Trace, check_positive
from relevo.errors import ConfigError

THINK_S = 4.0  # mean pause of a person between an answer's expected end and the next turn
_ANSWER_S_PER_TOKEN = 0.03  # how long an answer is expected to take, for the next turn's arrival
_SHARED_SEED = 1 << 56
_OWN_SEED = 1 << 52
_CHAT_TURNS = 4  # on average
Process = Callable[[random.Random], Iterator[float]]
Lengths = Callable[[random.Random, int], tuple[tuple[Segment, ...], int]]


def poisson(rate: float) -> Process:
    """Times of arrival at `rate` per second."""
    return bursty(rate, 1.0)


def bursty(rate: float, cv: float) -> Process:
    """Gamma-distributed gaps with this coefficient of variation: 1 is Poisson, 0 even."""
    check_positive("rate", rate)
    if not 0 <= cv <= 100:
        raise ConfigError("cv", f"{cv:g} is not between 0 and 100")

    def times(draw: random.Random) -> Iterator[float]:
        at = 0.0
        while True:
            at += draw.gammavariate(1 / cv**2, cv**2 / rate) if cv else 1 / rate
            yield at

    return times


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
    """Two short prompts with longer answers to each long prompt with a short one."""
    if index % 3 == 2:
        return (_own(index, draw.randint(1300, 1500)),), draw.randint(2, 4)
    return (_own(index, draw.randint(32, 64)),), draw.randint(60, 90)


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

        def starts(chance: random.Random) -> Iterator[float]:
            return itertools.islice(
                process(chance), 0, None, _CHAT_TURNS
            )  # the rate is of requests

        begins = sum(1 for _ in itertools.takewhile(lambda at: at < span_s, starts(draw)))
        turns = [_chat(draw, index) for index in range(begins)]
        trace = start_conversations("chat", turns, starts, seed)
        return trace.window(0, span_s) if trace.span_s > span_s else trace
    times = itertools.takewhile(lambda at: at < span_s, process(draw))
    lengths = random.Random(f"{name}/{seed}/lengths")
    arrivals = tuple(
        Arrival(round(at, 6), *lengths_of(lengths, index)) for index, at in enumerate(times)
    )
    if not arrivals:
        raise ConfigError("rate", f"no request arrives within {span_s:g} s")
    return Trace(name, arrivals, span_s)


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
    for turns, begin in zip(conversations, starts(draw), strict=False):
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

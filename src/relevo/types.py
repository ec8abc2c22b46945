"""Ids and small values that several rooms share."""

from __future__ import annotations

import enum
import time
from typing import Annotated

import msgspec


class Role(enum.StrEnum):
    """What a worker does: compute prompts, generate tokens, or both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class FinishReason(enum.StrEnum):
    """Why a generation ended; the values of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off.

    The draw for a position depends on `seed` and the position alone, so a generation that moves
    to another worker goes on with the same draws.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


Detail = int | float | str | list[int]


class TimelineEvent(msgspec.Struct, frozen=True):
    """Something that happened to a request: `at_ns` on CLOCK_MONOTONIC, `who` the process."""

    name: str
    at_ns: int
    who: str
    detail: dict[str, Detail] = {}


def now_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: one clock for every process of a host."""
    return time.monotonic_ns()

"""What the two halves of the vLLM connector say to each other, and what a request says to them.
No vLLM in here: everything is plain and pickles."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import xxhash

PARAMS_KEY = "relevo"


Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Endpoint = Annotated[str, msgspec.Meta(pattern=r"^tcp://[^\s/]+:[0-9]+$")]


class HandoffParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kv_transfer_params["relevo"]` of a request. The decode side's names the endpoints of prefill
    workers, the prefill side's does not. Both carry the same `handoff`, a number that whoever
    dispatches them draws at random for each.

    `exact`: `handoff` is the hand-off's id itself and the prompt comes without its last token, as
    between workers of ours. Otherwise the id is drawn from `handoff` and the prompt, so that the
    two sides meet only on the very same tokens, and a list of prompts needs one number only.
    `label`: what the request is called where vLLM gives it a name of its own.
    """

    handoff: Number
    prefill: tuple[Endpoint, ...] = ()
    exact: bool = False
    label: str = ""


def params_of(kv_transfer_params: dict[str, Any] | None) -> HandoffParams | None:
    """None where a request says nothing to us. Raises msgspec.ValidationError."""
    ours = (kv_transfer_params or {}).get(PARAMS_KEY)
    if ours is None:
        return None
    return msgspec.convert(ours, HandoffParams)


def handoff_id(params: HandoffParams, wanted: Sequence[int]) -> int:
    """63 bits. `wanted`: the prompt without its last token."""
    if params.exact:
        return params.handoff
    digest = xxhash.xxh3_64_intdigest(array("I", wanted).tobytes(), params.handoff)
    return digest >> 1


def next_attempt(params: HandoffParams) -> HandoffParams:
    """With the next prefill worker, under an id of its own."""
    digest = xxhash.xxh3_64_intdigest(params.handoff.to_bytes(8), 1)
    return msgspec.structs.replace(params, handoff=digest >> 1, prefill=params.prefill[1:])


@dataclass(frozen=True)
class Receive:
    """Decode side: blocks are reserved for `tokens` from block `first_page` on; ask for them."""

    handoff: int
    request: str
    label: str
    tokens: tuple[int, ...]
    first_page: int
    pages: tuple[int, ...]
    prefill: tuple[str, ...]


@dataclass(frozen=True)
class Compute:
    """Prefill side: after this step the first `computed` tokens of a prompt lie in `pages`."""

    handoff: int
    request: str
    computed: int
    pages: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    """Prefill side: a request is over. `computed`: all of its prompt was; `held`: its blocks are
    kept until it is reported as sent."""

    handoff: int
    request: str
    computed: bool
    held: bool


@dataclass(frozen=True)
class StepPlan:
    """From the scheduler to the rank, with every step. `empty`: the step runs no forward pass."""

    receive: tuple[Receive, ...] = ()
    aborted: tuple[str, ...] = ()  # decode side: no longer wanted
    compute: tuple[Compute, ...] = ()
    preempted: tuple[str, ...] = ()  # prefill side: their blocks are about to be overwritten
    ended: tuple[Ended, ...] = ()
    queued: tuple[int, ...] = ()  # prefill side: hand-offs whose requests wait to be scheduled
    empty: bool = False


@dataclass
class Results:
    """From the rank to the scheduler: requests, each once."""

    sent: set[str]
    received: set[str]
    failed: set[str]  # of those received

"""Control messages. Frozen, explicitly tagged, small: KV never travels here.

See docs/wire-protocol.md. The version is checked when a link is opened, not per message.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from relevo.types import FinishReason, Role, Sampling, TimelineEvent

PROTOCOL_VERSION = 2
CHECKSUM_BYTES = 8  # of a layer's pages; layers in the order of the layer counter

Id = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


def by_layer(checksums: bytes) -> list[bytes]:
    """One checksum per layer."""
    return [checksums[at : at + CHECKSUM_BYTES] for at in range(0, len(checksums), CHECKSUM_BYTES)]


class Message(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of every control message."""


# ---- any link ----


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent by both sides every interval. `steps` is how many engine steps the sender has ended,
    `busy` whether it has anything to do."""

    steps: int = 0
    busy: bool = False


class Refused(Message, frozen=True, tag="refused"):
    """The link or the message before is not accepted."""

    reason: str


# ---- worker → router ----


class Load(msgspec.Struct, frozen=True):
    """How busy a worker is. `waiting` sequences have no pages yet; `handoffs` are those not done
    by either side's table, by state; `slots` the counter slots in use; `in_flight` the writes
    posted and not over."""

    running: int = 0
    waiting: int = 0
    free_pages: int = 0
    quarantined_pages: int = 0
    handoffs: dict[str, int] = {}
    slots: int = 0
    in_flight: int = 0


class Register(Message, frozen=True, tag="register"):
    """A worker offers itself. `credit_tokens` is how many prompt tokens may be dispatched to a
    prefill worker and not yet be done; `endpoint` is where decode workers reach it."""

    worker: str
    incarnation: int
    version: int
    role: Role
    model: str
    pages: int
    page_tokens: int
    max_context: int
    vocabulary: int
    credit_tokens: int
    local_prefill_tokens: int
    pid: int
    endpoint: str = ""


class WorkerStatus(Message, frozen=True, tag="status"):
    """Sent with each heartbeat to the router. `counters` only ever grow, and so do `errors`: failed
    writes by what failed and of what."""

    load: Load
    counters: dict[str, int] = {}
    errors: dict[str, int] = {}


class HandoffHeld(Message, frozen=True, tag="held"):
    """A hand-off has landed and waits to be released. Its request's prompt has `prompt_tokens`; the
    prompt's pages from `first_page` on have landed in `pages`, `size` bytes in all. `sent` and
    `arrived` are their checksums: CHECKSUM_BYTES per layer."""

    handoff: int
    request: str
    prefill: str
    prompt_tokens: int
    first_page: int
    pages: tuple[int, ...]
    size: int
    sent: bytes
    arrived: bytes


class HandoffLetGo(Message, frozen=True, tag="let-go"):
    """A held hand-off waits no more: it was released, or its request is gone."""

    handoff: int


class Output(Message, frozen=True, tag="output"):
    """New tokens of a request, and how it ended if it has."""

    request: str
    attempt: int
    tokens: tuple[int, ...]
    finish: FinishReason | None = None


class PrefillDone(Message, frozen=True, tag="prefill-done"):
    """The request needs no more of its prefill worker: its credit is free again."""

    request: str
    attempt: int


class RequestFailed(Message, frozen=True, tag="request-failed"):
    """The request ended without an answer."""

    request: str
    attempt: int
    reason: str


class Timeline(Message, frozen=True, tag="timeline"):
    """Events of a request, in any order, possibly after it has ended."""

    request: str
    events: tuple[TimelineEvent, ...]


# ---- router → worker ----


class Registered(Message, frozen=True, tag="registered"):
    """The router has taken the worker in."""


class RegisterAgain(Message, frozen=True, tag="register-again"):
    """The router does not know the worker: it was restarted, or had given the worker up. What the
    worker still runs is nobody's any more."""


class PrefillCandidate(msgspec.Struct, frozen=True):
    """A prefill worker that has credit for the request."""

    worker: str
    endpoint: str


class Generate(Message, frozen=True, tag="generate"):
    """Run a request. Tokens of a lower attempt than the last dispatched one are ignored."""

    request: str
    attempt: int
    tokens: tuple[int, ...]
    sampling: Sampling
    candidates: tuple[PrefillCandidate, ...] = ()


class ReleaseHandoff(Message, frozen=True, tag="release"):
    """A held hand-off may go on."""

    handoff: int


class Abort(Message, frozen=True, tag="abort"):
    """Nobody wants the request any more."""

    request: str


# ---- decode worker → prefill worker ----


class OpenLink(Message, frozen=True, tag="open-link"):
    """A decode worker asks a prefill worker to connect to its memory under a new link id.

    `layout` is a msgpack-encoded kv.layout.PoolLayout."""

    worker: str
    version: int
    model: str
    link: Id
    driver: str
    address: bytes
    layout: bytes


class PrefillRequest(Message, frozen=True, tag="prefill"):
    """Compute and push. Idempotent by `handoff`.

    `tokens` are the prompt without its last token; pages before `first_page` are there already.
    `pages` are the destination pages of `first_page` and following. With `verify` the answer
    `finished` is waited for: it carries checksums."""

    handoff: Id
    link: Id
    request: str
    tokens: tuple[Id, ...]
    first_page: Id
    pages: tuple[Id, ...]
    slot: Id
    generation: Id
    verify: bool = False


class Cancel(Message, frozen=True, tag="cancel"):
    """Stop writing for this hand-off and say when nothing of it can land any more."""

    handoff: Id


# ---- prefill worker → decode worker ----


class LinkOpened(Message, frozen=True, tag="link-opened"):
    """The data link is up."""

    link: int


class Accepted(Message, frozen=True, tag="accepted"):
    """The hand-off is queued."""

    handoff: Id


class Rejected(Message, frozen=True, tag="rejected"):
    """The hand-off will never be written."""

    handoff: Id
    reason: str


class CancelAck(Message, frozen=True, tag="cancel-ack"):
    """Nothing of this hand-off is in flight, and nothing will be posted."""

    handoff: Id


class Failed(Message, frozen=True, tag="failed"):
    """The hand-off failed, and everything posted for it has drained."""

    handoff: Id
    reason: str


class Finished(Message, frozen=True, tag="finished"):
    """Every write is complete. Timings, for which nothing waits, and where they were asked for the
    checksums of what was sent: CHECKSUM_BYTES per layer."""

    handoff: Id
    events: tuple[TimelineEvent, ...]
    checksums: bytes = b""


FromWorker = (
    Register | Heartbeat | WorkerStatus | Output | PrefillDone | RequestFailed | Timeline
    | HandoffHeld | HandoffLetGo
)  # fmt: skip
FromRouter = Registered | RegisterAgain | Refused | Heartbeat | Generate | Abort | ReleaseHandoff
FromDecode = OpenLink | Heartbeat | PrefillRequest | Cancel
FromPrefill = LinkOpened | Refused | Heartbeat | Accepted | Rejected | CancelAck | Failed | Finished
AnyMessage = FromWorker | FromRouter | FromDecode | FromPrefill

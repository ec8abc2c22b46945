"""The prefill side of the hand-off on a worker's control thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from relevo.errors import LayoutMismatch
from relevo.kv.copy_plan import copies_for
from relevo.kv.hashes import pages_for
from relevo.kv.layout import PoolLayout, check_compatible
from relevo.messenger.checksums import layer_checksums
from relevo.messenger.host import PrefillHost, PrefillJob
from relevo.messenger.prefill_table import (
    Action,
    PrefillTable,
    Release,
    Send,
    Start,
    Stop,
    Withdraw,
)
from relevo.messenger.slots import Slot
from relevo.transfer.engine import (
    GENERATIONS,
    SLOTS,
    Copy,
    LayerMap,
    TransferEngine,
    TransferEvent,
)
from relevo.types import TimelineEvent
from relevo.wire.liveness import Liveness
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Finished,
    FromDecode,
    Heartbeat,
    LinkOpened,
    Message,
    OpenLink,
    PrefillRequest,
    Refused,
)

CONNECT_TIMEOUT_S = 5.0
Route = bytes


@dataclass
class DecodePeer:
    """A decode worker whose memory this one writes to."""

    route: Route
    worker: str
    link: int
    pages: int  # of its pool
    liveness: Liveness
    up: bool = False


def layer_maps(source: PoolLayout, destination: PoolLayout) -> list[LayerMap]:
    """Where each layer's pages lie on both sides, in the order of the layer counter.

    Raises LayoutMismatch.
    """
    check_compatible(source, destination)
    maps: list[LayerMap] = []
    for ours, theirs in zip(source.groups, destination.groups, strict=True):
        try:
            plan = copies_for({0: ours.heads}, 0, theirs.heads, ours.head_bytes)
        except ValueError as error:
            raise LayoutMismatch(str(error)) from error
        copies = [Copy(c.source_offset, c.destination_offset, c.length) for c in plan]
        for from_offset, to_offset in zip(ours.layer_offsets, theirs.layer_offsets, strict=True):
            maps.append(
                LayerMap(
                    source_region=source.region,
                    destination_region=destination.region,
                    source_base=from_offset,
                    source_stride=ours.page_stride,
                    destination_base=to_offset,
                    destination_stride=theirs.page_stride,
                    copies=copies,
                )
            )
    return maps


class PrefillSide:
    """Control thread only. `send(route, message)` must not block."""

    def __init__(
        self,
        *,
        worker: str,
        model: str,
        layout: PoolLayout,
        transfer: TransferEngine,
        host: PrefillHost,
        send: Callable[[Route, Message], None],
        beat: Callable[[], Heartbeat],
    ) -> None:
        self._worker = worker
        self._model = model
        self._layout = layout
        self._transfer = transfer
        self._host = host
        self._send = send
        self._beat = beat
        self._table = PrefillTable()
        self._peers: dict[int, DecodePeer] = {}  # by link
        self._events: dict[int, list[TimelineEvent]] = {}  # by hand-off
        self.counters = dict.fromkeys(("finished", "withdrawn", "failed", "links"), 0)

    @property
    def states(self) -> dict[str, int]:
        """Hand-offs by state."""
        return self._table.states

    def note(self, handoff: int, event: TimelineEvent) -> None:
        """Something the host did for a hand-off; travels to the decode side in the end."""
        if handoff in self._events:
            self._events[handoff].append(event)

    def handle(self, route: Route, message: FromDecode) -> None:
        now = time.monotonic()
        for peer in self._peers.values():
            if peer.route == route:
                peer.liveness.heard(now)
        match message:
            case Heartbeat():
                self._send(route, self._beat())
            case OpenLink():
                self._open_link(route, message)
            case PrefillRequest():
                self._request(route, message)
            case Cancel():
                link = next((p.link for p in self._peers.values() if p.route == route), None)
                if link is not None:
                    self._do(self._table.cancel(message.handoff, link))

    def abandon(self, handoff: int, reason: str) -> None:
        """The host cannot compute it: its forward pass failed."""
        self._do(self._table.abandon(handoff, reason))

    def transfer_event(self, event: TransferEvent) -> None:
        kind = TransferEvent.Kind
        if event.kind is kind.LINK_UP:
            self.counters["links"] += 1
            if event.link in self._peers:
                self._peers[event.link].up = True
            self._send_to(event.link, LinkOpened(event.link))
        elif event.kind is kind.LINK_DOWN:
            self._send_to(event.link, Refused(event.error))
            self._lose(event.link)
        elif event.kind is kind.LINK_CLOSED:
            self._do(self._table.link_closed(event.link))
            self._peers.pop(event.link, None)
        elif event.kind is kind.DRAINED:
            self._do(self._table.drained(event.handoff))
        elif event.kind is kind.FAILED:
            self.counters["failed"] += 1
            self._do(self._table.failed(event.handoff, event.error))
        elif event.kind is kind.PUSHED:
            self._pushed(event)

    def tick(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if peer.liveness.lost(now) is not None:
                self._lose(peer.link)

    def _open_link(self, route: Route, message: OpenLink) -> None:
        known = self._peers.get(message.link)
        if known is not None and known.route == route:  # said again
            if known.up:
                self._send(route, LinkOpened(message.link))
            return
        for peer in [p for p in self._peers.values() if p.worker == message.worker]:
            self._lose(peer.link)  # an older epoch of the same worker
        try:
            layout, maps = self._check(message)
        except LayoutMismatch as error:
            self._send(route, Refused(str(error)))
            return
        self._peers[message.link] = DecodePeer(
            route, message.worker, message.link, layout.pages, Liveness(time.monotonic())
        )
        self._transfer.connect(message.link, message.address, maps, CONNECT_TIMEOUT_S)

    def _check(self, message: OpenLink) -> tuple[PoolLayout, list[LayerMap]]:
        for what, ours, theirs in (
            ("protocol version", PROTOCOL_VERSION, message.version),
            ("model", self._model, message.model),
            ("transport", self._transfer.transport, message.driver),
        ):
            if ours != theirs:
                raise LayoutMismatch(f"{what}: prefill worker has {ours}, decode worker {theirs}")
        try:
            layout = msgspec.msgpack.decode(message.layout, type=PoolLayout)
        except msgspec.MsgspecError as error:
            raise LayoutMismatch(
                f"the decode worker's layout is not understood: {error}"
            ) from error
        return layout, layer_maps(self._layout, layout)

    def _request(self, route: Route, message: PrefillRequest) -> None:
        job = PrefillJob(
            handoff=message.handoff,
            link=message.link,
            request=message.request,
            tokens=message.tokens,
            first_page=message.first_page,
            destination=message.pages,
            slot=Slot(message.slot, message.generation),
            verify=message.verify,
        )
        peer = self._peers.get(message.link)
        if peer is None or peer.route != route:
            self._send(route, Refused("the link of this hand-off is not open"))
            return
        refusal = self._malformed(job, peer) or self._host.refuses(job)
        self._do(self._table.request(job, refusal))

    def _malformed(self, job: PrefillJob, peer: DecodePeer) -> str | None:
        """What in a request would make us write where we must not."""
        needed = pages_for(len(job.tokens), self._layout.groups[0].page_tokens)
        if len(job.destination) != needed - job.first_page:
            return (
                f"{len(job.destination)} pages from page {job.first_page} on, "
                f"{len(job.tokens)} tokens fill {needed}"
            )
        if not job.destination or max(job.destination) >= peer.pages:
            return f"pages {job.destination}, the decode worker's pool has {peer.pages}"
        if not (job.slot.number < SLOTS and job.slot.generation < GENERATIONS):
            return f"{job.slot} is not one of {SLOTS} slots"
        return None

    def _pushed(self, event: TransferEvent) -> None:
        if event.computed_ns:
            self.note(
                event.handoff,
                TimelineEvent("prefill-end", event.computed_ns[-1], self._worker),
            )
        self.note(
            event.handoff,
            TimelineEvent(
                "pushed",
                event.at_ns,
                self._worker,
                {
                    "writes": event.writes,
                    "parts": event.parts,
                    "bytes": event.bytes,
                    "layers_ns": event.posted_ns,
                },
            ),
        )
        if event.last:
            self.counters["finished"] += 1
            events = tuple(self._events.get(event.handoff, ()))
            finished = Finished(event.handoff, events, self._checksums(event.handoff))
            self._do(self._table.pushed(event.handoff, finished))

    def _checksums(self, handoff: int) -> bytes:
        """Of the pages as they are here once all has been written, where that is wanted."""
        job = self._table.open_job(handoff)
        if job is None or not job.verify:
            return b""
        last = job.first_page + len(job.destination)
        pages = self._host.pages(handoff)[job.first_page : last]
        return layer_checksums(self._transfer.memory(self._layout.region), self._layout, pages)

    def _lose(self, link: int) -> None:
        """Stops writing to a peer; its pages come back when the link has closed."""
        self._do(self._table.link_lost(link))
        self._transfer.close_link(link)

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send_to(action.link, action.message)
                case Start():
                    self._events[action.job.handoff] = []
                    self._transfer.open_handoff(action.job.handoff)
                    self._host.start(action.job)
                case Withdraw():
                    self.counters["withdrawn"] += 1
                    self._host.stop(action.handoff)
                    self._transfer.withdraw(action.handoff)
                case Stop():
                    self._host.stop(action.handoff)
                case Release():
                    self._events.pop(action.handoff, None)
                    self._host.release(action.handoff)

    def _send_to(self, link: int, message: Message) -> None:
        if link in self._peers:
            self._send(self._peers[link].route, message)

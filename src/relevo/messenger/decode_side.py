"""The decode side of the hand-off on a worker's control thread: links, slots, messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from relevo.kv.layout import PoolLayout
from relevo.messenger.decode_table import (
    Action,
    DecodeTable,
    Fence,
    Freed,
    Handoff,
    Landed,
    Lost,
    Send,
)
from relevo.messenger.host import DecodeHost, HandoffWanted
from relevo.messenger.landings import Landing, Landings
from relevo.messenger.slots import SlotPool
from relevo.transfer.engine import TransferEngine, TransferEvent
from relevo.types import TimelineEvent, now_ns
from relevo.wire.liveness import Liveness
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    CancelAck,
    Failed,
    Finished,
    FromPrefill,
    Heartbeat,
    LinkOpened,
    Message,
    OpenLink,
    PrefillCandidate,
    PrefillRequest,
    Refused,
    Rejected,
)

HANDOFF_DEADLINE_S = 120.0
LINK_DEADLINE_S = 10.0


@dataclass
class PrefillPeer:
    """A prefill worker that this one is, or wants to be, linked to."""

    endpoint: str
    link: int
    open_deadline: float
    liveness: Liveness
    up: bool = False
    waiting: list[HandoffWanted] = field(default_factory=list)


class DecodeSide:
    """Control thread only. `send(endpoint, message)` must not block; `note(request, events)`
    takes timeline events."""

    def __init__(
        self,
        *,
        worker: str,
        model: str,
        layout: PoolLayout,
        transfer: TransferEngine,
        host: DecodeHost,
        send: Callable[[str, Message], None],
        close: Callable[[str], None],
        note: Callable[[str, tuple[TimelineEvent, ...]], None],
        beat: Callable[[], Heartbeat],
    ) -> None:
        self._worker = worker
        self._model = model
        self._layout = msgspec.msgpack.encode(layout)
        self._transfer = transfer
        self._host = host
        self._send = send
        self._close = close
        self._note = note
        self._beat = beat
        self._table = DecodeTable()
        self._slots = SlotPool()
        self.landings = Landings(transfer)
        self._peers: dict[str, PrefillPeer] = {}
        # Request and link of hand-offs whose timings are still to come.
        self._untold: dict[int, tuple[str, int]] = {}
        self.counters = dict.fromkeys(("landed", "lost", "cancelled", "fences", "link_failures"), 0)

    @property
    def quarantined_pages(self) -> int:
        return self._table.quarantined_pages

    @property
    def open_handoffs(self) -> int:
        return len(self._table)

    @property
    def slots_in_use(self) -> int:
        return self._slots.total - self._slots.free

    def request(self, wanted: HandoffWanted, candidates: Sequence[PrefillCandidate]) -> None:
        """Asks the first candidate, opening a link to it first where there is none."""
        if not candidates:
            self._never_asked(wanted, "no prefill worker")
            return
        peer = self._peer(candidates[0].endpoint)
        if peer.up:
            self._ask(peer, wanted)
        else:
            peer.waiting.append(wanted)

    def cancel(self, request: str) -> None:
        """The request is not wanted any more. `freed` follows for each of its hand-offs."""
        for peer in self._peers.values():
            for wanted in [w for w in peer.waiting if w.request == request]:
                peer.waiting.remove(wanted)
                self._host.freed(wanted.handoff)
        self._do(self._table.cancel(request, time.monotonic()))

    def handle(self, endpoint: str, message: FromPrefill) -> None:
        peer = self._peers.get(endpoint)
        if peer is None:
            return  # a worker that has been fenced: its words do not count
        peer.liveness.heard(time.monotonic())
        match message:
            case Heartbeat():
                peer.liveness.progress(time.monotonic(), message.steps, message.busy)
            case LinkOpened():
                self._opened(peer, message.link)
            case Refused():
                self._drop(peer, f"the prefill worker refused the link: {message.reason}")
            case Accepted():
                self._do(self._table.accepted(message.handoff))
                self._event(message.handoff, "handoff-accepted")
            case Rejected():
                self._do(self._table.rejected(message.handoff, message.reason))
            case Failed():
                self._do(self._table.failed(message.handoff, message.reason))
            case CancelAck():
                self._do(self._table.cancel_ack(message.handoff))
            case Finished():
                untold = self._untold.pop(message.handoff, None)
                if untold is not None:
                    self._note(untold[0], message.events)

    def landed(self, landing: Landing) -> None:
        """The host's loop has found a counter complete or broken."""
        now = time.monotonic()
        self._do(self._table.counted(landing.slot, now, overshot=landing.overshot))

    def transfer_event(self, event: TransferEvent) -> None:
        if event.kind is TransferEvent.Kind.LINK_DOWN:
            for peer in [p for p in self._peers.values() if p.link == event.link]:
                self._drop(peer, event.error)
        elif event.kind is TransferEvent.Kind.LINK_CLOSED:
            self._do(self._table.link_closed(event.link))

    def tick(self, now: float) -> None:
        for peer in list(self._peers.values()):
            if not peer.up and now > peer.open_deadline:
                self._drop(peer, f"no link within {LINK_DEADLINE_S:.0f} s")
            elif (reason := peer.liveness.lost(now)) is not None:
                self._drop(peer, f"the prefill worker was given up: {reason}")
            elif peer.liveness.due(now):
                self._send(peer.endpoint, self._beat())
        self._do(self._table.tick(now))

    def _peer(self, endpoint: str) -> PrefillPeer:
        peer = self._peers.get(endpoint)
        if peer is None:
            now = time.monotonic()
            link = self._transfer.expect_link()
            peer = PrefillPeer(endpoint, link, now + LINK_DEADLINE_S, Liveness(now))
            self._peers[endpoint] = peer
            self._send(
                endpoint,
                OpenLink(
                    worker=self._worker,
                    version=PROTOCOL_VERSION,
                    model=self._model,
                    link=link,
                    driver=self._transfer.transport,
                    address=self._transfer.address(),
                    layout=self._layout,
                ),
            )
        return peer

    def _opened(self, peer: PrefillPeer, link: int) -> None:
        if peer.link != link:
            return
        peer.up = True
        waiting, peer.waiting = peer.waiting, []
        for wanted in waiting:
            self._ask(peer, wanted)

    def _ask(self, peer: PrefillPeer, wanted: HandoffWanted) -> None:
        slot = self._slots.take()
        if slot is None:
            self._never_asked(wanted, "no free counter slot")
            return
        self.landings.expect(slot, wanted.handoff, len(wanted.pages) * wanted.layers)
        message = PrefillRequest(
            handoff=wanted.handoff,
            link=peer.link,
            request=wanted.request,
            tokens=wanted.tokens,
            first_page=wanted.first_page,
            pages=wanted.pages,
            slot=slot.number,
            generation=slot.generation,
        )
        self._untold[wanted.handoff] = wanted.request, peer.link
        self._do(self._table.request(message, time.monotonic() + HANDOFF_DEADLINE_S))
        self._event(wanted.handoff, "handoff-requested")

    def _never_asked(self, wanted: HandoffWanted, reason: str) -> None:
        self.counters["lost"] += 1
        self._host.lost(wanted.request, wanted.handoff, reason)
        self._host.freed(wanted.handoff)

    def _drop(self, peer: PrefillPeer, reason: str) -> None:
        """Fences a peer. The next request to the same endpoint opens a new link."""
        self.counters["link_failures"] += 1
        del self._peers[peer.endpoint]
        self._close(peer.endpoint)
        self._untold = {h: u for h, u in self._untold.items() if u[1] != peer.link}
        for wanted in peer.waiting:
            self._never_asked(wanted, reason)
        self._do(self._table.link_lost(peer.link, reason))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    endpoint = self._endpoint_of(action.link)
                    if endpoint is not None:
                        self._send(endpoint, action.message)
                case Landed():
                    self.counters["landed"] += 1
                    self._give_back(action.handoff)
                case Lost():
                    self.counters["lost"] += 1
                    self._untold.pop(action.handoff.id, None)
                    self._host.lost(action.handoff.request, action.handoff.id, action.reason)
                case Freed():
                    if not action.handoff.lost:
                        self.counters["cancelled"] += 1
                    self._untold.pop(action.handoff.id, None)
                    self._give_back(action.handoff)
                    self._host.freed(action.handoff.id)
                case Fence():
                    self._fence(action)

    def _fence(self, action: Fence) -> None:
        for peer in [p for p in self._peers.values() if p.link == action.link]:
            self._drop(peer, action.reason)  # comes back here, without a peer
            return
        self.counters["fences"] += 1
        self._transfer.close_link(action.link)

    def _give_back(self, handoff: Handoff) -> None:
        self.landings.forget(handoff.slot)
        self._slots.give_back(handoff.slot)

    def _endpoint_of(self, link: int) -> str | None:
        return next((p.endpoint for p in self._peers.values() if p.link == link), None)

    def _event(self, handoff: int, name: str) -> None:
        untold = self._untold.get(handoff)
        if untold is not None:
            self._note(untold[0], (TimelineEvent(name, now_ns(), self._worker),))

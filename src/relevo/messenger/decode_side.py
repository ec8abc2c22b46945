"""The decode side of the hand-off on a worker's control thread: links, slots, messages."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

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
from relevo.messenger.inspection import Inspection
from relevo.messenger.landings import Landing, Landings
from relevo.messenger.links import PrefillLinks, PrefillPeer
from relevo.messenger.slots import SlotPool
from relevo.transfer.engine import TransferEngine, TransferEvent
from relevo.types import TimelineEvent, now_ns
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
MOST_UNTOLD = 4096


class DecodeSide:
    """Control thread only. `send(endpoint, message)` must not block; `note(request, events)`
    takes timeline events; `tell(message)` speaks to the router.

    `verify`: what lands is checked against the prefill worker's checksums; `hold`: and waits to be
    released.
    """

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
        tell: Callable[[Message], None],
        beat: Callable[[], Heartbeat],
        verify: bool = False,
        hold: bool = False,
    ) -> None:
        self._worker = worker
        self._model = model
        self._layout = msgspec.msgpack.encode(layout)
        self._transfer = transfer
        self._host = host
        self._note = note
        self._table = DecodeTable()
        self._slots = SlotPool()
        self.landings = Landings(transfer)
        self._links = PrefillLinks(
            expect=transfer.expect_link, greeting=self._greeting, send=send, close=close, beat=beat
        )
        # Whether the host has to wait for `intact` before it uses what has landed.
        self.inspects = verify or hold
        self._inspection = Inspection(
            worker=worker,
            layout=layout,
            transfer=transfer,
            host=host,
            hold=hold,
            send=self._links.send,
            tell=tell,
            note=note,
        )
        # Request and link of hand-offs whose timings are still to come. They may have been lost.
        self._untold: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._counters = dict.fromkeys(
            ("landed", "lost", "cancelled", "fences", "link_failures"), 0
        )

    @property
    def counters(self) -> dict[str, int]:
        own = Counter(self._counters)
        own["repeats"] = self._table.repeats
        own.update(self._inspection.counters)
        return dict(own)

    @property
    def states(self) -> dict[str, int]:
        """Hand-offs by state."""
        return self._table.states | self._inspection.states

    @property
    def quarantined_pages(self) -> int:
        return self._table.quarantined_pages

    @property
    def slots_in_use(self) -> int:
        return self._slots.total - self._slots.free

    def request(self, wanted: HandoffWanted, candidates: Sequence[PrefillCandidate]) -> None:
        """Asks the first candidate, opening a link to it first where there is none."""
        if not candidates:
            self._never_asked(wanted, "no prefill worker")
            return
        peer = self._links.to(candidates[0], time.monotonic())
        if peer.up:
            self._ask(peer, wanted)
        else:
            peer.waiting.append(wanted)

    def cancel(self, request: str) -> None:
        """The request is not wanted any more. `freed` follows for each of its hand-offs."""
        for wanted in self._links.cancel(request):
            self._host.freed(wanted.handoff)
        self._do(self._table.cancel(request, time.monotonic()))
        self._inspection.cancel(request)

    def release(self, handoff: int) -> None:
        """A held hand-off may go on."""
        self._inspection.release(handoff)

    def handle(self, endpoint: str, message: FromPrefill) -> None:
        peer = self._links.at(endpoint)
        if peer is None:
            return  # a worker that has been fenced: its words do not count
        peer.liveness.heard(time.monotonic())
        match message:
            case Heartbeat():
                peer.liveness.progress(time.monotonic(), message.steps, message.busy)
            case LinkOpened():
                for wanted in self._links.opened(peer, message.link):
                    self._ask(peer, wanted)
            case Refused():
                self._drop(peer, f"the prefill worker refused the link: {message.reason}")
            case Accepted():
                if self._table.accepted(message.handoff, time.monotonic()):
                    self._event(message.handoff, "handoff-accepted")
            case Rejected():
                self._do(self._table.rejected(message.handoff, message.reason))
            case Failed():
                self._do(self._table.failed(message.handoff, message.reason))
            case CancelAck():
                self._do(self._table.cancel_ack(message.handoff))
            case Finished():
                self._finished(message)

    def landed(self, landing: Landing) -> None:
        """The host's loop has found a counter complete or broken."""
        now = time.monotonic()
        actions = self._table.counted(landing.slot, now, overshot=landing.overshot)
        self._do(actions)
        for action in actions:
            if self.inspects and isinstance(action, Landed):
                self._inspection.landed(action.handoff, landing.reached_ns)

    def transfer_event(self, event: TransferEvent) -> None:
        if event.kind is TransferEvent.Kind.LINK_DOWN:
            peer = self._links.of(event.link)
            if peer is not None:
                self._drop(peer, event.error)
        elif event.kind is TransferEvent.Kind.LINK_CLOSED:
            self._do(self._table.link_closed(event.link))

    def tick(self, now: float) -> None:
        for peer, reason in self._links.tick(now):
            self._drop(peer, reason)
        self._do(self._table.tick(now))
        self._inspection.tick(now)

    def _greeting(self, link: int) -> OpenLink:
        return OpenLink(
            worker=self._worker,
            version=PROTOCOL_VERSION,
            model=self._model,
            link=link,
            driver=self._transfer.transport,
            address=self._transfer.address(),
            layout=self._layout,
        )

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
            verify=self.inspects,
        )
        self._untold[wanted.handoff] = wanted.request, peer.link
        if len(self._untold) > MOST_UNTOLD:
            self._untold.popitem(last=False)
        now = time.monotonic()
        self._do(self._table.request(message, peer.worker, now, HANDOFF_DEADLINE_S))
        self._event(wanted.handoff, "handoff-requested")

    def _finished(self, message: Finished) -> None:
        if message.checksums:
            self._table.told(message.handoff, message.checksums)
            self._inspection.told(message.handoff, message.checksums)
        if message.events:  # an answer that is given again has none
            untold = self._untold.pop(message.handoff, None)
            if untold is not None:
                self._note(untold[0], message.events)

    def _never_asked(self, wanted: HandoffWanted, reason: str) -> None:
        self._counters["lost"] += 1
        self._host.lost(wanted.request, wanted.handoff, reason)
        self._host.freed(wanted.handoff)

    def _drop(self, peer: PrefillPeer, reason: str) -> None:
        """Fences a peer. The next request to the same endpoint opens a new link."""
        self._counters["link_failures"] += 1
        self._links.remove(peer)
        for handoff in [h for h, (_, link) in self._untold.items() if link == peer.link]:
            del self._untold[handoff]
        for wanted in peer.waiting:
            self._never_asked(wanted, reason)
        self._do(self._table.link_lost(peer.link, reason))
        self._inspection.link_lost(peer.link)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._links.send(action.link, action.message)
                case Landed():
                    self._counters["landed"] += 1
                    self._give_back(action.handoff)
                case Lost():
                    self._counters["lost"] += 1
                    self._untold.pop(action.handoff.id, None)
                    self._host.lost(action.handoff.request, action.handoff.id, action.reason)
                case Freed():
                    if not action.handoff.lost:
                        self._counters["cancelled"] += 1
                    self._untold.pop(action.handoff.id, None)
                    self._give_back(action.handoff)
                    self._host.freed(action.handoff.id)
                case Fence():
                    self._fence(action)

    def _fence(self, action: Fence) -> None:
        peer = self._links.of(action.link)
        if peer is not None:
            self._drop(peer, action.reason)  # comes back here, without a peer
            return
        self._counters["fences"] += 1
        self._transfer.close_link(action.link)

    def _give_back(self, handoff: Handoff) -> None:
        self.landings.forget(handoff.slot)
        self._slots.give_back(handoff.slot)

    def _event(self, handoff: int, name: str) -> None:
        untold = self._untold.get(handoff)
        if untold is not None:
            self._note(untold[0], (TimelineEvent(name, now_ns(), self._worker),))

"""`--verify-kv` and `--hold-handoffs`: what has landed is checked, and kept waiting where that is
wanted, before its request may use it. On the decode side's control thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from relevo.kv.layout import PoolLayout
from relevo.messenger.arrivals import Action, Arrival, Arrivals, Freed, Hold, LetGo, Spoiled
from relevo.messenger.checksums import layer_checksums
from relevo.messenger.decode_table import Handoff, Send
from relevo.messenger.host import DecodeHost
from relevo.transfer.engine import TransferEngine
from relevo.types import TimelineEvent, now_ns
from relevo.wire.messages import HandoffHeld, HandoffLetGo, Message

log = logging.getLogger(__name__)


class Inspection:
    """`send(link, message)` goes to a prefill worker, `tell(message)` to the router,
    `note(request, events)` to the request's timeline."""

    def __init__(
        self,
        *,
        worker: str,
        layout: PoolLayout,
        transfer: TransferEngine,
        host: DecodeHost,
        hold: bool,
        send: Callable[[int, Message], None],
        tell: Callable[[Message], None],
        note: Callable[[str, tuple[TimelineEvent, ...]], None],
    ) -> None:
        self._worker = worker
        self._layout = layout
        self._memory = transfer.memory(layout.region)
        self._host = host
        self._send = send
        self._tell = tell
        self._note = note
        self._arrivals = Arrivals(hold)
        # `lost` and `cancelled` add to those of hand-offs that never landed.
        self.counters = dict.fromkeys(
            ("verified", "mismatched", "unverified", "released", "lost", "cancelled"), 0
        )

    @property
    def states(self) -> dict[str, int]:
        return self._arrivals.states

    def landed(self, handoff: Handoff, reached_ns: int) -> None:
        arrived = layer_checksums(self._memory, self._layout, handoff.wanted.pages)
        now = time.monotonic()
        self._do(self._arrivals.landed(handoff, reached_ns, arrived, handoff.sent, now))

    def told(self, handoff: int, checksums: bytes) -> None:
        self._do(self._arrivals.told(handoff, checksums))

    def release(self, handoff: int) -> None:
        self._do(self._arrivals.release(handoff))

    def cancel(self, request: str) -> None:
        self._do(self._arrivals.cancel(request))

    def link_lost(self, link: int) -> None:
        self._do(self._arrivals.link_lost(link))

    def tick(self, now: float) -> None:
        self._do(self._arrivals.tick(now))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(action.link, action.message)
                case LetGo():
                    self._let_go(action.arrival)
                case Hold():
                    self.counters["verified"] += 1
                    self._event(action.arrival, "held")
                    self._tell(self._described(action.arrival))
                case Spoiled():
                    self._spoiled(action)
                case Freed():
                    self.counters["cancelled"] += 1
                    self._tell_gone(action.arrival)
                    self._host.freed(action.arrival.handoff.id)

    def _let_go(self, arrival: Arrival) -> None:
        if arrival.held:
            self.counters["released"] += 1
            self._event(arrival, "released")
            self._tell_gone(arrival)
        else:
            self.counters["verified"] += 1
            self._event(arrival, "verified")
        self._host.intact(arrival.handoff.id, arrival.reached_ns)

    def _spoiled(self, action: Spoiled) -> None:
        """Complete and wrong: its pages are free at once, its request begins again."""
        handoff = action.arrival.handoff
        layers = f"layers {list(action.layers)}, " if action.layers else ""
        reason = (
            f"the KV that {handoff.prefill} sent to {self._worker} could not be verified: "
            f"{layers}{action.reason}"
        )
        log.error("request %s is prefilled again: %s", handoff.request, reason)
        self.counters["mismatched" if action.layers else "unverified"] += 1
        self.counters["lost"] += 1
        self._host.lost(handoff.request, handoff.id, reason)
        self._host.freed(handoff.id)

    def _described(self, arrival: Arrival) -> HandoffHeld:
        wanted = arrival.handoff.wanted
        page_bytes = sum(len(g.layers) * g.page_bytes for g in self._layout.groups)
        return HandoffHeld(
            handoff=wanted.handoff,
            request=wanted.request,
            prefill=arrival.handoff.prefill,
            prompt_tokens=len(wanted.tokens) + 1,
            first_page=wanted.first_page,
            pages=wanted.pages,
            size=len(wanted.pages) * page_bytes,
            sent=arrival.sent or b"",
            arrived=arrival.arrived,
        )

    def _tell_gone(self, arrival: Arrival) -> None:
        if arrival.held:
            self._tell(HandoffLetGo(arrival.handoff.id))

    def _event(self, arrival: Arrival, name: str) -> None:
        self._note(arrival.handoff.request, (TimelineEvent(name, now_ns(), self._worker),))

"""A decode worker's links to prefill workers: asked for, up, and given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relevo.messenger.decode_table import RETRY_S
from relevo.messenger.host import HandoffWanted
from relevo.wire.liveness import Liveness
from relevo.wire.messages import Heartbeat, Message, OpenLink, PrefillCandidate

LINK_DEADLINE_S = 10.0


@dataclass
class PrefillPeer:
    """A prefill worker that this one is, or wants to be, linked to. `waiting` are hand-offs that
    will be asked for once the link is up."""

    endpoint: str
    worker: str
    link: int
    open_deadline: float
    ask_at: float
    liveness: Liveness
    ask_s: float = RETRY_S
    up: bool = False
    waiting: list[HandoffWanted] = field(default_factory=list)


class PrefillLinks:
    """One peer per endpoint. `expect()` draws a new link's id, `greeting(link)` is the message that
    asks for it; `send(endpoint, message)` must not block."""

    def __init__(
        self,
        *,
        expect: Callable[[], int],
        greeting: Callable[[int], OpenLink],
        send: Callable[[str, Message], None],
        close: Callable[[str], None],
        beat: Callable[[], Heartbeat],
    ) -> None:
        self._expect = expect
        self._greeting = greeting
        self._send = send
        self._close = close
        self._beat = beat
        self._peers: dict[str, PrefillPeer] = {}

    def to(self, candidate: PrefillCandidate, now: float) -> PrefillPeer:
        """The peer, asked for a link where there is none."""
        peer = self._peers.get(candidate.endpoint)
        if peer is None:
            peer = PrefillPeer(
                endpoint=candidate.endpoint,
                worker=candidate.worker,
                link=self._expect(),
                open_deadline=now + LINK_DEADLINE_S,
                ask_at=now,
                liveness=Liveness(now),
            )
            self._peers[candidate.endpoint] = peer
            self._ask(peer, now)
        return peer

    def at(self, endpoint: str) -> PrefillPeer | None:
        return self._peers.get(endpoint)

    def of(self, link: int) -> PrefillPeer | None:
        return next((p for p in self._peers.values() if p.link == link), None)

    def send(self, link: int, message: Message) -> None:
        """Dropped where the link has been given up."""
        peer = self.of(link)
        if peer is not None:
            self._send(peer.endpoint, message)

    def opened(self, peer: PrefillPeer, link: int) -> list[HandoffWanted]:
        """What can be asked for now."""
        if peer.link != link:
            return []
        peer.up = True
        waiting, peer.waiting = peer.waiting, []
        return waiting

    def cancel(self, request: str) -> list[HandoffWanted]:
        """Takes out what waits for a link and is not wanted any more."""
        cancelled: list[HandoffWanted] = []
        for peer in self._peers.values():
            cancelled += [w for w in peer.waiting if w.request == request]
            peer.waiting = [w for w in peer.waiting if w.request != request]
        return cancelled

    def remove(self, peer: PrefillPeer) -> None:
        """The next hand-off to its endpoint asks for a new link."""
        del self._peers[peer.endpoint]
        self._close(peer.endpoint)

    def tick(self, now: float) -> list[tuple[PrefillPeer, str]]:
        """Heartbeats and what is said again; returns the peers to be given up, and why."""
        given_up: list[tuple[PrefillPeer, str]] = []
        for peer in self._peers.values():
            if not peer.up and now > peer.open_deadline:
                given_up.append((peer, f"no link within {LINK_DEADLINE_S:.0f} s"))
            elif (reason := peer.liveness.lost(now)) is not None:
                given_up.append((peer, f"the prefill worker was given up: {reason}"))
            elif not peer.up and now >= peer.ask_at:
                self._ask(peer, now)
            elif peer.liveness.due(now):
                self._send(peer.endpoint, self._beat())
        return given_up

    def _ask(self, peer: PrefillPeer, now: float) -> None:
        """Said again where it may have been lost: the link's id makes it the same question."""
        peer.ask_at = now + peer.ask_s
        peer.ask_s *= 2
        self._send(peer.endpoint, self._greeting(peer.link))

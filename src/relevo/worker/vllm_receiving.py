"""The decode side of hand-offs under vLLM: blocks that are being written by someone else.

vLLM binds a request to its blocks and reuses them as soon as it hears of the request's end. So it
hears of a hand-off only when nothing can write to its blocks any more: landed, or freed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relevo.messenger.host import HandoffWanted
from relevo.messenger.landings import Landing, Landings
from relevo.wire.messages import PrefillCandidate
from relevo.worker.inbox import Inbox
from relevo.worker.vllm_plan import Receive, StepPlan

log = logging.getLogger(__name__)

REMEMBERED = 16384


@dataclass
class Receiving:
    request: str
    lost: bool = False


class ReceivingHost:
    """A DecodeHost. `begin`, `results` and `wait` are the engine's thread's; the port's methods the
    hand-off loop's. `post` goes to that loop; `settled(request)` is told there of a hand-off that
    was lost."""

    def __init__(
        self,
        layers: int,
        post: Callable[..., object],
        settled: Callable[[str], object],
    ) -> None:
        self._layers = layers
        self._settled = settled
        # By hand-off and by vLLM's name: what requests are called outside.
        self._labels: OrderedDict[int | str, str] = OrderedDict()
        self._post = post
        self._inbox = Inbox()  # the engine's thread's
        self._receiving: dict[int, Receiving] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()

    def connect(
        self,
        *,
        landings: Landings,
        request: Callable[[HandoffWanted, Sequence[PrefillCandidate]], object],
        cancel: Callable[[str], object],
        report: Callable[[Landing], object],
        inspected: bool,
    ) -> None:
        """Before the first step: the messenger's ends."""
        self._landings = landings
        self._request = request
        self._cancel = cancel
        self._report = report
        self._inspected = inspected
        self._inbox.watch(landings.fd)

    # ---- the engine's thread ----

    def begin(self, plan: StepPlan) -> None:
        for receive in plan.receive:
            self._receiving[receive.handoff] = Receiving(receive.request)
            label = receive.label or receive.request
            self._labels[receive.handoff] = self._labels[receive.request] = label
            while len(self._labels) > REMEMBERED:
                self._labels.popitem(last=False)
            candidates = [PrefillCandidate(endpoint, endpoint) for endpoint in receive.prefill]
            self._post(self._request, self._wanted(receive), candidates)
        for request in plan.aborted:
            self._post(self._cancel, request)

    def _wanted(self, receive: Receive) -> HandoffWanted:
        return HandoffWanted(
            handoff=receive.handoff,
            request=receive.request,
            tokens=receive.tokens,
            first_page=receive.first_page,
            pages=receive.pages,
            layers=self._layers,
        )

    def results(self) -> tuple[set[str], set[str]]:
        """(received, of these failed): each request once, when its blocks are its own again."""
        for landing in self._landings.poll():
            if not landing.overshot and not self._inspected:
                self._done(landing.handoff)
            self._post(self._report, landing)
        self._inbox.run_all()
        received, self._received = self._received, set()
        failed, self._failed = self._failed, set()
        return received, failed

    @property
    def waiting(self) -> bool:
        """Whether a hand-off is outstanding."""
        return bool(self._receiving)

    def wait(self, timeout_s: float) -> None:
        """Until something has landed or is free."""
        self._inbox.wait(timeout_s)

    def _done(self, handoff: int) -> None:
        receiving = self._receiving.pop(handoff, None)
        if receiving is None:
            return
        self._received.add(receiving.request)
        if receiving.lost:
            self._failed.add(receiving.request)

    def _mark_lost(self, handoff: int) -> None:
        receiving = self._receiving.get(handoff)
        if receiving is not None:
            receiving.lost = True

    # ---- the hand-off loop's thread: DecodeHost ----

    def label(self, of: int | str) -> str | None:
        """What a request is called outside: by its hand-off, or by vLLM's name for it."""
        return self._labels.get(of)

    def intact(self, handoff: int, reached_ns: int) -> None:
        self._inbox.post(self._done, handoff)

    def lost(self, request: str, handoff: int, reason: str) -> None:
        log.warning("request %s is not handed off: %s", request, reason)
        self._settled(self._labels.get(request, request))
        self._inbox.post(self._mark_lost, handoff)

    def freed(self, handoff: int) -> None:
        self._inbox.post(self._done, handoff)

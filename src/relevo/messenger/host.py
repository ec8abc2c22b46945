"""The port between a messenger and the engine that it serves. Any engine implements it.

The messenger lives on the worker's control thread and calls a host from there; a host hands
calls on to its engine loop and must not block. From the engine loop a host touches only the
transfer engine's steps (`open_step`, `bump`, `end_step`) and `Landings.poll`; everything else of
the messenger is called on the control thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from relevo.kv.hashes import pages_for
from relevo.messenger.slots import Slot
from relevo.transfer.engine import PagePair, Push


@dataclass(frozen=True)
class PrefillJob:
    """A prompt to compute and push. `destination[i]` takes the prompt's page `first_page + i`.
    `verify`: checksums of what was sent are wanted."""

    handoff: int
    link: int
    request: str
    tokens: tuple[int, ...]
    first_page: int
    destination: tuple[int, ...]
    slot: Slot
    verify: bool = False

    def pages_after(self, computed: int, page_tokens: int) -> int:
        """How many of the prompt's pages may be pushed once its first `computed` tokens are there:
        those that are full, and at the prompt's end the last one as it is."""
        if computed >= len(self.tokens):
            return pages_for(len(self.tokens), page_tokens)
        return computed // page_tokens

    def push(self, ready: dict[int, int], layered: dict[int, int], *, last: bool) -> Push:
        """This job's part in a step, from `{prompt page: source page}` of pages that are complete
        in every layer (`ready`) and of those that this step completes (`layered`)."""
        return Push(
            handoff=self.handoff,
            link=self.link,
            slot=self.slot.number,
            generation=self.slot.generation,
            ready=self._pairs(ready),
            layered=self._pairs(layered),
            last=last,
        )

    def _pairs(self, pages: dict[int, int]) -> list[PagePair]:
        return [
            PagePair(source, self.destination[index - self.first_page])
            for index, source in sorted(pages.items())
            if index >= self.first_page
        ]


class PrefillHost(Protocol):
    """An engine that computes prompts for others."""

    def refuses(self, job: PrefillJob) -> str | None:
        """Why the job can never run here, or None."""
        ...

    def start(self, job: PrefillJob) -> None:
        """Queue the job."""
        ...

    def stop(self, handoff: int) -> None:
        """Compute no further step of it; its pages are still being read."""
        ...

    def release(self, handoff: int) -> None:
        """Nothing reads its pages any more. Follows every start, once."""
        ...

    def pages(self, handoff: int) -> list[int]:
        """Where the prompt's pages lie in the pool. Called when all have been pushed, before
        `release`."""
        ...


@dataclass(frozen=True)
class HandoffWanted:
    """A request's pages, reserved and waiting to be written. `handoff` is a fresh random id;
    `tokens` are the prompt without its last token; `layers` is how many layers each page counts
    for."""

    handoff: int
    request: str
    tokens: tuple[int, ...]
    first_page: int
    pages: tuple[int, ...]
    layers: int


class DecodeHost(Protocol):
    """An engine that generates from prompts computed elsewhere. Its loop polls `Landings` and
    hands what it finds to `DecodeSide.landed`. It lets a request run at once when its hand-off has
    landed, unless arrivals are inspected: then it waits for `intact`."""

    def intact(self, handoff: int, reached_ns: int) -> None:
        """What has landed may be used. `reached_ns`: when the last page came."""
        ...

    def lost(self, request: str, handoff: int, reason: str) -> None:
        """The hand-off was given up. The request goes on by other means, on other pages; those
        of this hand-off may still be written until `freed`. Comes too late if the host has seen
        it land: complete is complete."""
        ...

    def freed(self, handoff: int) -> None:
        """Nothing can write to the hand-off's pages any more. Follows `lost` or a cancel, once."""
        ...

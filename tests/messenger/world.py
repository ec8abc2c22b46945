"""What there is between the two workers of the machine, and at either: writes, jobs, counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from relevo.messenger.host import PrefillJob
from relevo.messenger.slots import Slot


@dataclass(eq=False)
class Write:
    """A one-sided write under way."""

    handoff: int
    link: int
    page: int
    slot: Slot


@dataclass(eq=False)
class Job:
    """A hand-off at the prefill worker: what its engine and its transfer engine know."""

    job: PrefillJob
    unposted: list[int]
    stopped: bool = False
    withdrawn: bool = False
    broken: bool = False
    open: bool = True  # in the transfer engine


@dataclass
class Counter:
    generation: int
    expected: int
    count: int = 0
    landed: set[int] = field(default_factory=set)  # pages counted

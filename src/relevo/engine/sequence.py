"""One request inside the engine: its tokens, its pages and how far it has come."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from relevo.kv.hashes import PageHash
from relevo.types import FinishReason, Sampling


class Phase(enum.Enum):
    """WAITING for pages; AWAITING_KV that another worker computes; RUNNING; ENDED."""

    WAITING = enum.auto()
    AWAITING_KV = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the engine loop.

    With `sampling` None it is a prompt to be computed for someone else: every token is prefill
    and none is generated. Otherwise the last prompt token is fed like any generated one.
    """

    id: str
    tokens: list[int]
    sampling: Sampling | None
    remote: bool = False  # the prompt may be computed by another worker
    phase: Phase = Phase.WAITING
    pages: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose keys and values are in the pages
    hashes: list[PageHash] = field(default_factory=list)  # of full pages, as far as known
    published: int = 0  # pages that the prefix cache has been told of
    reused: int = 0  # pages that came from the prefix cache
    prompt_length: int = 0
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def generates(self) -> bool:
        return self.sampling is not None

    @property
    def to_prefill(self) -> int:
        """How many tokens are still to be computed before the first decode step."""
        return len(self.tokens) - self.computed - self.generates

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

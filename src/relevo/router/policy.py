"""Which workers a request goes to. Pure: values in, values out.

Least loaded first. A prompt is sent to a prefill worker only against its credit, so that decode
pages are never reserved for a prompt that is not about to be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relevo.types import Role


@dataclass(frozen=True)
class WorkerView:
    """A worker as the policy sees it. `requests` are those dispatched to it and not ended,
    `waiting` those of them that had no pages when it last reported; `outstanding_tokens` prompt
    tokens dispatched to it and not yet computed."""

    name: str
    role: Role
    requests: int
    waiting: int
    outstanding_tokens: int
    credit_tokens: int
    local_prefill_tokens: int

    def has_credit(self, tokens: int) -> bool:
        """An idle worker takes any prompt, a busy one only what its credit still covers."""
        used = self.outstanding_tokens
        return used == 0 or used + tokens <= self.credit_tokens


@dataclass(frozen=True)
class Choice:
    """Where a request goes: the worker that generates, and prefill workers in order of
    preference; none means that it computes the prompt itself."""

    generates: str
    candidates: tuple[str, ...] = ()


def choose(
    prompt_tokens: int, workers: Sequence[WorkerView], *, on_credit: bool = True
) -> Choice | None:
    """None: wait until something changes. Without `on_credit` a prefill worker is not to be
    taken, because somebody else waits for one already."""
    prefill = [w for w in workers if w.role is Role.PREFILL]
    ready = sorted(
        (w for w in prefill if on_credit and w.has_credit(prompt_tokens)),
        key=lambda w: (w.outstanding_tokens, w.requests, w.name),
    )
    generating = sorted(
        (w for w in workers if w.role is not Role.PREFILL),
        key=lambda w: (w.waiting > 0, w.requests, w.name),
    )
    for worker in generating:
        alone = (
            worker.role is Role.MIXED
            or not prefill
            or prompt_tokens - 1 <= worker.local_prefill_tokens
        )
        if alone:
            return Choice(worker.name)
        if ready:
            return Choice(worker.name, tuple(w.name for w in ready))
    return None

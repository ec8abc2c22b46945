"""What the next step computes: continuous batching, chunked prefill, preemption."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from relevo.engine.page_pool import PagePool
from relevo.engine.sequence import Phase, Sequence
from relevo.kv.hashes import page_hashes, pages_for


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens first .. last-1 of a sequence's prompt."""

    sequence: Sequence
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass. `decodes` feed one token each. `cached` are prompts for someone else
    that the prefix cache covers whole: there is nothing to compute, only to hand over."""

    decodes: tuple[Sequence, ...]
    chunks: tuple[Chunk, ...]
    cached: tuple[Sequence, ...] = ()

    @property
    def computes(self) -> bool:
        return bool(self.decodes or self.chunks)


class Scheduler:
    """Decides in the order: running sequences' decode steps, then prompt chunks in order of
    arrival up to `step_tokens` tokens in all. A remote sequence with no more than
    `local_prefill_tokens` left to compute is computed here all the same. Not thread-safe."""

    def __init__(
        self,
        pool: PagePool,
        *,
        page_tokens: int,
        step_tokens: int,
        max_running: int,
        local_prefill_tokens: int = 0,
    ) -> None:
        self.pool = pool
        self.page_tokens = page_tokens
        self.step_tokens = step_tokens
        self.max_running = max_running
        self.local_prefill_tokens = local_prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.awaiting_kv: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, *, keep_pages: bool = False) -> None:
        """Ends a sequence wherever it is. `keep_pages`: someone may still write to or read from
        them and calls `release` later."""
        if sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        elif sequence.phase is Phase.AWAITING_KV:
            self.awaiting_kv.remove(sequence)
        elif sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
        sequence.phase = Phase.ENDED
        if not keep_pages:
            self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages = []

    def kv_landed(self, sequence: Sequence) -> None:
        """The prompt but for its last token has been computed elsewhere and is in the pages.
        They become findable with the sequence's first step, which must not wait for that."""
        self.awaiting_kv.remove(sequence)
        sequence.phase = Phase.RUNNING
        sequence.computed = len(sequence.tokens) - 1
        self.running.append(sequence)

    def kv_failed(self, sequence: Sequence, *, remote: bool) -> list[int]:
        """The sequence starts again on fresh pages, first in line; `remote`: another worker may
        still compute its prompt. Returns the pages at risk."""
        at_risk = self.part_from_pages(sequence)
        self.awaiting_kv.remove(sequence)
        self._restart(sequence, remote=remote)
        return at_risk

    def part_from_pages(self, sequence: Sequence) -> list[int]:
        """Takes a sequence's own pages from it and returns them: another worker may still write
        to them, and the caller releases them when nothing can. Pages that it shares with the
        prefix cache are given back at once."""
        at_risk = sequence.pages[sequence.reused :]
        self.pool.release(sequence.pages[: sequence.reused])
        sequence.pages = []
        return at_risk

    def admit(self) -> list[Sequence]:
        """Gives pages to waiting sequences in order; returns those that now await their KV."""
        awaiting: list[Sequence] = []
        while self.waiting and len(self.running) + len(self.awaiting_kv) < self.max_running:
            sequence = self.waiting[0]
            if not self._reserve(sequence):
                break
            self.waiting.popleft()
            if sequence.remote and sequence.to_prefill > self.local_prefill_tokens:
                sequence.phase = Phase.AWAITING_KV
                self.awaiting_kv.append(sequence)
                awaiting.append(sequence)
            else:
                sequence.phase = Phase.RUNNING
                self.running.append(sequence)
        return awaiting

    def schedule(self) -> Step | None:
        """The next step, or None when there is nothing to do until something arrives."""
        decodes = self._decodes()
        budget = max(1, self.step_tokens - len(decodes))
        chunks: list[Chunk] = []
        cached: list[Sequence] = []
        for sequence in self.running:
            if sequence.to_prefill > 0 and budget > 0:
                count = min(sequence.to_prefill, budget)
                chunks.append(Chunk(sequence, sequence.computed, sequence.computed + count))
                budget -= count
            elif sequence.to_prefill == 0 and not sequence.generates:
                cached.append(sequence)
        step = Step(tuple(decodes), tuple(chunks), tuple(cached))
        return step if step.computes or step.cached else None

    def publish(self, sequence: Sequence) -> None:
        """Makes the pages findable that committed steps have filled."""
        full = sequence.computed // self.page_tokens
        if full > len(sequence.hashes):
            sequence.hashes = page_hashes(
                sequence.tokens[: full * self.page_tokens], self.page_tokens
            )
        for index in range(sequence.published, full):
            self.pool.publish(sequence.pages[index], sequence.hashes[index])
        sequence.published = max(sequence.published, full)

    def _reserve(self, sequence: Sequence) -> bool:
        """Pages for all tokens and one more, shared ones first; leaves one for each running
        sequence, so that admitting does not force a preemption at once."""
        computable = len(sequence.tokens) - sequence.generates
        sequence.hashes = page_hashes(sequence.tokens[:computable], self.page_tokens)
        shared = self.pool.match(sequence.hashes)
        wanted = pages_for(len(sequence.tokens), self.page_tokens) + sequence.generates
        fresh = None
        if self.pool.available >= wanted - len(shared) + len(self.running):
            fresh = self.pool.allocate(wanted - len(shared))
        if fresh is None:
            self.pool.release(shared)
            return False
        sequence.pages = shared + fresh
        sequence.reused = sequence.published = len(shared)
        sequence.computed = len(shared) * self.page_tokens
        return True

    def _decodes(self) -> list[Sequence]:
        """Running sequences that have a page for their next token, oldest first. When pages run
        out the youngest running sequence gives its own up and is computed again later."""
        decodes: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.phase is not Phase.RUNNING or sequence.to_prefill or not sequence.generates:
                continue
            while len(sequence.pages) * self.page_tokens < len(sequence.tokens):
                page = self.pool.allocate(1)
                if page is not None:
                    sequence.pages += page
                    continue
                victim = self._preempt_youngest()
                if victim in decodes:
                    decodes.remove(victim)
                if victim is sequence:
                    break
            if sequence.phase is Phase.RUNNING:
                decodes.append(sequence)
        return decodes

    def _preempt_youngest(self) -> Sequence:
        victim = next(s for s in reversed(self.running) if s.generates)
        self.running.remove(victim)
        self.release(victim)
        self._restart(victim, remote=False)
        self.preemptions += 1
        return victim

    def _restart(self, sequence: Sequence, *, remote: bool) -> None:
        sequence.phase = Phase.WAITING
        sequence.computed = sequence.published = sequence.reused = 0
        sequence.remote = remote
        self.waiting.appendleft(sequence)

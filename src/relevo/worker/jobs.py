"""Which pages of a prompt are pushed in which step."""

from __future__ import annotations

from dataclasses import dataclass

from relevo.engine.sequence import Sequence
from relevo.messenger.host import PrefillJob
from relevo.transfer.engine import Push


@dataclass(slots=True)
class JobProgress:
    """A prefill job and how far its pages have been pushed."""

    job: PrefillJob
    sequence: Sequence
    pushed: int = 0  # prompt pages before this have been

    def push_for(self, computed: int, page_tokens: int) -> Push | None:
        """The job's part in a step after which `computed` tokens are in the pool.

        A page is pushed in the step that fills it or ends the prompt; pages from our own prefix
        cache in the first step. None where the step completes no page.
        """
        sequence = self.sequence
        last = computed == len(sequence.tokens)
        end = self.job.pages_after(computed, page_tokens)
        ready: dict[int, int] = {}
        if self.pushed < sequence.reused:
            ready = {i: sequence.pages[i] for i in range(self.pushed, sequence.reused)}
            self.pushed = sequence.reused
        layered = {i: sequence.pages[i] for i in range(self.pushed, end)}
        self.pushed = max(self.pushed, end)
        if not ready and not layered and not last:
            return None
        return self.job.push(ready, layered, last=last)

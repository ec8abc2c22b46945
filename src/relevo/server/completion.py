"""One choice of an answer: tokens from the router become text, cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from relevo.router.router import Router
from relevo.text.detokenizer import Detokenizer, StopStrings
from relevo.text.tokenizer import Tokenizer
from relevo.types import Sampling


@dataclass(frozen=True)
class Piece:
    """New text of a choice (possibly empty) and how many tokens it took; `finish` with the last."""

    text: str
    tokens: int
    finish: str | None


async def complete(
    router: Router,
    tokenizer: Tokenizer,
    id: str,
    prompt: tuple[int, ...],
    sampling: Sampling,
    stops: Sequence[str],
) -> AsyncIterator[Piece]:
    """Ends at a stop string, and cancels the generation there. Raises as Router.generate does."""
    detokenizer = Detokenizer(tokenizer)
    matcher = StopStrings(stops)
    generation = router.generate(id, prompt, sampling)
    try:
        async for output in generation:
            text = matcher.add(detokenizer.add(output.tokens))
            if output.finish is not None and not matcher.stopped:
                text += matcher.add(detokenizer.flush())
            if matcher.stopped:
                yield Piece(text, len(output.tokens), "stop")
                return
            if output.finish is not None:
                text += matcher.flush()
            yield Piece(text, len(output.tokens), output.finish)
    finally:
        await generation.aclose()  # type: ignore[attr-defined]

"""One choice of an answer: tokens from the router become text, cut at stop strings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from relevo.router.router import Router
from relevo.server.answers import Answer
from relevo.text.detokenizer import Detokenizer, StopStrings
from relevo.text.tokenizer import Tokenizer
from relevo.types import Sampling


@dataclass(frozen=True)
class Choice:
    """One of a request's answers, before it runs."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling


async def complete(
    router: Router, tokenizer: Tokenizer, choice: Choice, stops: Sequence[str]
) -> AsyncGenerator[Answer, None]:
    """Pieces of the answer as its tokens come, possibly without text. Ends at a stop string, and
    cancels the generation there. Raises as Router.generate does."""
    detokenizer = Detokenizer(tokenizer, choice.prompt)
    matcher = StopStrings(stops)
    async with aclosing(router.generate(choice.id, choice.prompt, choice.sampling)) as generation:
        async for output in generation:
            text = matcher.add(detokenizer.add(output.tokens))
            if output.finish is not None and not matcher.stopped:
                text += matcher.add(detokenizer.flush())
            if matcher.stopped:
                yield Answer(text, output.tokens, "stop")
                return
            if output.finish is not None:
                text += matcher.flush()
            yield Answer(text, output.tokens, output.finish)

"""The generation endpoints: parse, tokenise, run every choice, answer whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from aiohttp import web

from relevo.errors import InvalidRequest, RelevoError
from relevo.router.router import Router
from relevo.server.answers import Shape, error_body, usage
from relevo.server.completion import Piece, complete
from relevo.server.schema import (
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    Common,
    CompletionRequest,
    checked_max_tokens,
    parse,
    sampling_of,
    stop_strings,
)
from relevo.text.tokenizer import Tokenizer
from relevo.types import Sampling


@dataclass(frozen=True)
class Choice:
    """One of a request's answers, before it runs."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling


class Api:
    """`model` is the name that requests must ask for."""

    def __init__(self, router: Router, tokenizer: Tokenizer, model: str) -> None:
        self._router = router
        self._tokenizer = tokenizer
        self._model = model

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = parse(await request.read(), ChatRequest)
        self._check_model(body)
        if not body.messages:
            raise InvalidRequest("messages: there are none", "messages")
        if self._tokenizer.chat is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", "messages")
        text = self._tokenizer.chat.render([m.plain() for m in body.messages])
        prompt = tuple(self._tokenizer.encode(text, special=False))
        room = max(1, self._router.max_context() - len(prompt))
        name = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        limit = checked_max_tokens(getattr(body, name), name, room)
        return await self._answer(request, body, [prompt], limit, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = parse(await request.read(), CompletionRequest)
        self._check_model(body)
        limit = checked_max_tokens(body.max_tokens, "max_tokens", DEFAULT_COMPLETION_TOKENS)
        return await self._answer(request, body, self._prompts(body), limit, chat=False)

    def _check_model(self, body: Common) -> None:
        if body.model != self._model:
            raise InvalidRequest(
                f"model {body.model!r} is not served here; {self._model!r} is",
                "model",
                "model_not_found",
            )

    def _prompts(self, body: CompletionRequest) -> list[tuple[int, ...]]:
        encoded = [
            tuple(self._tokenizer.encode(p, special=True) if isinstance(p, str) else p)
            for p in body.prompts()
        ]
        if not encoded or not all(encoded):
            raise InvalidRequest("prompt: it is empty", "prompt")
        return encoded

    async def _answer(
        self,
        request: web.Request,
        body: Common,
        prompts: list[tuple[int, ...]],
        max_tokens: int,
        *,
        chat: bool,
    ) -> web.StreamResponse:
        id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
        end_ids = self._tokenizer.end_ids
        copies = body.n or 1
        choices = [
            Choice(
                id if copy + place == 0 else f"{id}-{place * copies + copy}",
                prompt,
                sampling_of(body, max_tokens=max_tokens, end_ids=end_ids, choice=copy),
            )
            for place, prompt in enumerate(prompts)
            for copy in range(copies)
        ]
        stops = stop_strings(body)
        shape = Shape(chat=chat, id=id, model=self._model)
        if body.stream:
            wants_usage = body.stream_options is not None and body.stream_options.include_usage
            return await self._stream(request, shape, choices, stops, wants_usage)
        return await self._whole(shape, choices, stops)

    def _run(self, choice: Choice, stops: list[str]) -> AsyncIterator[Piece]:
        return complete(
            self._router, self._tokenizer, choice.id, choice.prompt, choice.sampling, stops
        )

    async def _whole(
        self, shape: Shape, choices: list[Choice], stops: list[str]
    ) -> web.StreamResponse:
        async def collect(choice: Choice) -> tuple[str, str | None, int]:
            pieces = [piece async for piece in self._run(choice, stops)]
            count = sum(piece.tokens for piece in pieces)
            return "".join(piece.text for piece in pieces), pieces[-1].finish, count

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_unwrapped(collect(choice))) for choice in choices]
        results = [task.result() for task in tasks]
        for result in results:
            if isinstance(result, RelevoError):
                raise result
        answers = [r for r in results if not isinstance(r, RelevoError)]
        counts = usage(
            sum(len(prompt) for prompt in {c.prompt for c in choices}),
            sum(count for _, _, count in answers),
        )
        return json_response(shape.whole([(t, f) for t, f, _ in answers], counts))

    async def _stream(
        self,
        request: web.Request,
        shape: Shape,
        choices: list[Choice],
        stops: list[str],
        wants_usage: bool,
    ) -> web.StreamResponse:
        """The response begins with the first piece, so that a refusal still gets its status."""
        streams = [self._run(choice, stops) for choice in choices]
        merged = _merge(streams)
        response: web.StreamResponse | None = None
        generated = 0
        try:
            async for index, piece in merged:
                if response is None:
                    response = await _open_stream(request, shape, len(choices))
                generated += piece.tokens
                # Sent also where a cut character leaves no text yet: a chunk is a token's arrival.
                await _send(response, shape.piece(index, piece.text, piece.finish))
        except RelevoError as error:
            if response is None:
                raise
            await _send(response, error_body(error))
        finally:
            await merged.aclose()  # type: ignore[attr-defined]
        assert response is not None
        if wants_usage:
            prompt_tokens = sum(len(prompt) for prompt in {c.prompt for c in choices})
            await _send(response, shape.usage_chunk(usage(prompt_tokens, generated)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _unwrapped(work):  # type: ignore[no-untyped-def]
    """A task group would wrap our errors; hand them over as values."""
    try:
        return await work
    except RelevoError as error:
        return error


async def _merge(streams: list[AsyncIterator[Piece]]) -> AsyncIterator[tuple[int, Piece]]:
    """Pieces of all choices as they come. Closing it closes all of them."""
    queue: asyncio.Queue[tuple[int, Piece | RelevoError | None]] = asyncio.Queue()

    async def pump(index: int, stream: AsyncIterator[Piece]) -> None:
        try:
            async for piece in stream:
                queue.put_nowait((index, piece))
            queue.put_nowait((index, None))
        except RelevoError as error:
            queue.put_nowait((index, error))
        finally:
            await stream.aclose()  # type: ignore[attr-defined]

    tasks = [asyncio.create_task(pump(i, s)) for i, s in enumerate(streams)]
    try:
        left = len(streams)
        while left:
            index, item = await queue.get()
            if isinstance(item, RelevoError):
                raise item
            if item is None:
                left -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _open_stream(
    request: web.Request, shape: Shape, choices: int
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    for index in range(choices):
        opening = shape.opening(index)
        if opening is not None:
            await _send(response, opening)
    return response


async def _send(response: web.StreamResponse, data: object) -> None:
    await response.write(b"data: " + msgspec.json.encode(data) + b"\n\n")


def json_response(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )

"""The generation endpoints: parse, tokenise, run every choice, answer whole or as a stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from aiohttp import web

from relevo.errors import InvalidRequest, RelevoError
from relevo.router.router import Router
from relevo.server.answers import Answer, Shape, error_body, usage
from relevo.server.completion import Choice, complete
from relevo.server.merge import merge
from relevo.server.schema import (
    DEFAULT_COMPLETION_TOKENS,
    MOST_CHOICES,
    ChatRequest,
    Common,
    CompletionRequest,
    checked_max_tokens,
    parse,
    sampling_of,
    stop_strings,
)
from relevo.text.tokenizer import Tokenizer


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
        prompt = await self._encode(text, special=False)
        room = max(1, self._router.max_context() - len(prompt))
        name = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        limit = checked_max_tokens(getattr(body, name), name, room)
        return await self._answer(request, body, [prompt], limit, chat=True)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = parse(await request.read(), CompletionRequest)
        self._check_model(body)
        limit = checked_max_tokens(body.max_tokens, "max_tokens", DEFAULT_COMPLETION_TOKENS)
        prompts = [
            await self._encode(p, special=True) if isinstance(p, str) else tuple(p)
            for p in body.prompts()
        ]
        if not prompts or not all(prompts):
            raise InvalidRequest("prompt: it is empty", "prompt")
        if len(prompts) * (body.n or 1) > MOST_CHOICES:
            raise InvalidRequest(
                f"prompt: {len(prompts)} prompts with n {body.n or 1} are more than "
                f"{MOST_CHOICES} answers",
                "prompt",
            )
        return await self._answer(request, body, prompts, limit, chat=False)

    async def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Beside the event loop, which has heartbeats to answer, and not at all where the text is
        surely too long."""
        limit = self._router.max_context()
        least = len(text) // self._tokenizer.longest_token
        if least > limit:
            raise InvalidRequest(
                f"this deployment's context is {limit} tokens, but the prompt has at least {least}",
                "prompt",
                "context_length_exceeded",
            )
        return tuple(await asyncio.to_thread(self._tokenizer.encode, text, special=special))

    def _check_model(self, body: Common) -> None:
        if body.model != self._model:
            raise InvalidRequest(
                f"model: {body.model!r} is not served here, {self._model!r} is",
                "model",
                "model_not_found",
            )

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
        copies = body.n or 1
        choices = [
            Choice(
                id if place + copy == 0 else f"{id}-{place * copies + copy}",
                prompt,
                sampling_of(
                    body, max_tokens=max_tokens, end_ids=self._tokenizer.end_ids, choice=copy
                ),
            )
            for place, prompt in enumerate(prompts)
            for copy in range(copies)
        ]
        stops = stop_strings(body)
        streams = [complete(self._router, self._tokenizer, choice, stops) for choice in choices]
        shape = Shape(chat=chat, id=id, model=self._model, token_ids=bool(body.return_token_ids))
        prompt_tokens = sum(len(prompt) for prompt in prompts)
        if body.stream:
            wants_usage = bool(body.stream_options and body.stream_options.include_usage)
            return await _stream(request, shape, streams, prompt_tokens if wants_usage else None)
        return await _whole(shape, streams, prompt_tokens)


Streams = list[AsyncGenerator[Answer, None]]


async def _whole(shape: Shape, streams: Streams, prompt_tokens: int) -> web.StreamResponse:
    answers = [Answer("", (), None) for _ in streams]
    async with aclosing(merge(streams)) as merged:
        async for index, piece in merged:
            before = answers[index]
            answers[index] = Answer(
                before.text + piece.text, before.tokens + piece.tokens, piece.finish
            )
    counts = usage(prompt_tokens, sum(len(answer.tokens) for answer in answers))
    return json_response(shape.whole(answers, counts))


async def _stream(
    request: web.Request, shape: Shape, streams: Streams, usage_of_prompt: int | None
) -> web.StreamResponse:
    """The response begins with the first piece, so that a refusal still gets its status. A chunk
    is sent for every token, also where a cut character leaves no text yet: it is an arrival."""
    response: web.StreamResponse | None = None
    generated = 0
    try:
        async with aclosing(merge(streams)) as merged:
            async for index, piece in merged:
                if response is None:
                    response = await _open_stream(request, shape, len(streams))
                generated += len(piece.tokens)
                await _send(response, shape.piece(index, piece))
    except RelevoError as error:
        if response is None:
            raise
        await _send(response, error_body(error))
    assert response is not None
    if usage_of_prompt is not None:
        await _send(response, shape.usage_chunk(usage(usage_of_prompt, generated)))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _open_stream(request: web.Request, shape: Shape, choices: int) -> web.StreamResponse:
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


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers=headers,
    )

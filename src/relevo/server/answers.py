"""The shapes of the OpenAI API's answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relevo.errors import InvalidRequest, Overloaded, RelevoError


@dataclass(frozen=True)
class Answer:
    """A choice's text (whole, or the next piece of it), its tokens, and how it ended."""

    text: str
    tokens: tuple[int, ...]
    finish: str | None


class Shape:
    """Builds the answers of one request: chat or plain completion, whole or in chunks."""

    def __init__(self, *, chat: bool, id: str, model: str, token_ids: bool) -> None:
        self._chat = chat
        self._token_ids = token_ids
        self._head = {"id": id, "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[Answer], usage: dict[str, int]) -> dict[str, Any]:
        choices = [
            self._choice(
                index,
                {"message": {"role": "assistant", "content": answer.text}}
                if self._chat
                else {"text": answer.text},
                answer,
            )
            for index, answer in enumerate(answers)
        ]
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": usage}

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a chat stream begins with: the role."""
        if not self._chat:
            return None
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk([self._choice(index, delta, Answer("", (), None))])

    def piece(self, index: int, answer: Answer) -> dict[str, Any]:
        body: dict[str, Any] = {"text": answer.text}
        if self._chat:
            body = {"delta": {"content": answer.text} if answer.text else {}}
        return self._chunk([self._choice(index, body, answer)])

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        return self._chunk([]) | {"usage": usage}

    def _choice(self, index: int, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        ids = {"token_ids": answer.tokens} if self._token_ids else {}
        return {"index": index, **body, **ids, "logprobs": None, "finish_reason": answer.finish}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def status_of(error: RelevoError) -> int:
    """The one place where errors become HTTP statuses."""
    if isinstance(error, InvalidRequest):
        return 404 if error.code in ("model_not_found", "not_found") else 400
    if isinstance(error, Overloaded):
        return 503 if error.retry_after_s is None else 429
    return 500


def headers_of(error: RelevoError) -> dict[str, str]:
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        return {"Retry-After": str(error.retry_after_s)}
    return {}


def error_body(error: RelevoError) -> dict[str, Any]:
    """OpenAI's error shape."""
    caller = isinstance(error, InvalidRequest)
    return {
        "error": {
            "message": str(error),
            "type": "invalid_request_error" if caller else "server_error",
            "param": error.param if isinstance(error, InvalidRequest) else None,
            "code": error.code if isinstance(error, InvalidRequest) else type(error).__name__,
        }
    }

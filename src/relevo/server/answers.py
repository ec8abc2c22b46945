"""The shapes of the OpenAI API's answers."""

from __future__ import annotations

import time
from typing import Any

from relevo.errors import (
    InvalidRequest,
    Overloaded,
    RelevoError,
)


class Shape:
    """Builds the answers of one request: chat or plain completion, whole or in chunks."""

    def __init__(self, *, chat: bool, id: str, model: str) -> None:
        self._chat = chat
        self._head = {"id": id, "created": int(time.time()), "model": model}

    def _object(self, chunk: bool) -> str:
        if self._chat:
            return "chat.completion.chunk" if chunk else "chat.completion"
        return "text_completion"

    def whole(self, texts: list[tuple[str, str | None]], usage: dict[str, int]) -> dict[str, Any]:
        """`texts` are (text, finish reason) by choice."""
        choices = []
        for index, (text, finish) in enumerate(texts):
            body: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text}}
                if self._chat
                else {"text": text}
            )
            choices.append({"index": index, **body, "logprobs": None, "finish_reason": finish})
        return {**self._head, "object": self._object(False), "choices": choices, "usage": usage}

    def opening(self, index: int) -> dict[str, Any] | None:
        """What a chat stream begins with: the role."""
        if not self._chat:
            return None
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)

    def piece(self, index: int, text: str, finish: str | None) -> dict[str, Any]:
        if not self._chat:
            return self._chunk(index, {"text": text}, finish)
        return self._chunk(index, {"delta": {"content": text} if text else {}}, finish)

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self._head, "object": self._object(True), "choices": [], "usage": usage}

    def _chunk(self, index: int, body: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": index, **body, "logprobs": None, "finish_reason": finish}
        return {**self._head, "object": self._object(True), "choices": [choice]}


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
        return 503
    return 500


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

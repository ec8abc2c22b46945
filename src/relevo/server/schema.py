"""Bodies of the OpenAI API that are understood, checked field by field."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, TypeVar

import msgspec

from relevo.errors import InvalidRequest
from relevo.types import Sampling

DEFAULT_COMPLETION_TOKENS = 16  # the OpenAI API's default for /v1/completions
MOST_CHOICES = 2048  # prompts times n


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Common(msgspec.Struct):
    """Fields of both endpoints. `top_k`, `stop_token_ids`, `ignore_eos` and `return_token_ids` are
    not OpenAI's but common. The second block is what the API has and this server has not:
    accepted only where it asks for nothing."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None

    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    suffix: Any = None
    echo: bool | None = None
    best_of: int | None = None


T = TypeVar("T", bound=Common)


class TextPart(msgspec.Struct):
    text: str
    type: str = "text"


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, str]:
        content = self.content or ""
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return {"role": self.role, "content": content}


class ChatRequest(Common, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None


class CompletionRequest(Common, kw_only=True):
    prompt: str | list[str | int | list[int]]

    def prompts(self) -> list[str | list[int]]:
        """One text or one list of token ids each. Raises InvalidRequest for a mixture."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [item for item in self.prompt if isinstance(item, int)]
        if ids and len(ids) == len(self.prompt):
            return [ids]
        if ids:
            raise InvalidRequest("prompt: token ids mixed with something else", "prompt")
        return [item for item in self.prompt if not isinstance(item, int)]


def parse(body: bytes, kind: type[T]) -> T:
    """Raises InvalidRequest, saying which field is wrong and what it would take."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        param = where.strip("`").lstrip(".") or None
        raise InvalidRequest(f"{param or 'body'}: {message}", param) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    _refuse_unsupported(request)
    if request.n is not None and not 1 <= request.n <= MOST_CHOICES:
        raise InvalidRequest(f"n: {request.n} is not between 1 and {MOST_CHOICES}", "n")
    return request


def _refuse_unsupported(request: Common) -> None:
    harmless: dict[str, tuple[Any, ...]] = {
        "logprobs": (None, False),
        "top_logprobs": (None, 0),
        "logit_bias": (None, {}),
        "frequency_penalty": (None, 0),
        "presence_penalty": (None, 0),
        "response_format": (None, {"type": "text"}),
        "tools": (None, []),
        "tool_choice": (None, "none", "auto"),
        "functions": (None, []),
        "suffix": (None, ""),
        "echo": (None, False),
        "best_of": (None, 1),
    }
    for name, allowed in harmless.items():
        if getattr(request, name) not in allowed:
            raise InvalidRequest(f"{name} is not supported by this server", name)


def stop_strings(request: Common) -> list[str]:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if any(not stop for stop in stops):
        raise InvalidRequest("stop: an empty string stops everything", "stop")
    return stops


def sampling_of(
    request: Common, *, max_tokens: int, end_ids: tuple[int, ...], choice: int
) -> Sampling:
    """Raises InvalidRequest for a value outside its range."""
    ids = () if request.ignore_eos else end_ids
    seed = secrets.randbits(63) if request.seed is None else (request.seed + choice) % (1 << 63)
    values: dict[str, Any] = {
        "max_tokens": max_tokens,
        "seed": seed,
        "stop_token_ids": (*ids, *(request.stop_token_ids or ())),
    }
    for name in ("temperature", "top_p", "top_k"):
        if getattr(request, name) is not None:
            values[name] = getattr(request, name)
    if values.get("top_k") == -1:  # a common way to say "off"
        values["top_k"] = 0
    try:
        return msgspec.convert(values, Sampling)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$.")
        name = where.strip("`")
        raise InvalidRequest(f"{name}: {values.get(name)}: {message}", name) from error


def checked_max_tokens(value: int | None, name: str, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise InvalidRequest(f"{name}: {value} is not 1 or more", name)
    return value

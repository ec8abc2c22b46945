"""Servers that are there already: which model they serve, and how long a context."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

from relevo.errors import ConfigError

LIMIT_S = 10.0


@dataclass(frozen=True)
class Found:
    """`context`: in tokens, where the server says (vLLM's `max_model_len`)."""

    url: str
    model: str
    context: int | None


def discover(url: str, model: str | None) -> Found:
    """Asks /v1/models. Raises ConfigError where nothing answers, or not with that model."""
    base = url.rstrip("/").removesuffix("/v1")
    served = asyncio.run(_models(base))
    wanted = model or next(iter(served), None)
    if wanted not in served:
        raise ConfigError("model", f"{base} serves {', '.join(served) or 'nothing'}, not {wanted}")
    return Found(base, wanted, served[wanted])


async def _models(base: str) -> dict[str, int | None]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{base}/v1/models") as response,
        ):
            if response.status != 200:
                raise ConfigError("url", f"{base}/v1/models answers {response.status}")
            listed = (await response.json())["data"]
            return {entry["id"]: entry.get("max_model_len") for entry in listed}
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
        raise ConfigError("url", f"{base} is no OpenAI-compatible server: {error!r}") from error

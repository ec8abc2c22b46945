"""A streaming client that records when each token came."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from relevo.errors import StateError

REQUEST_DEADLINE_S = 300.0


class RequestFailed(StateError):
    """A request of a benchmark's own was refused, or ended early."""


@dataclass
class Stream:
    """One streamed request. Times are CLOCK_MONOTONIC in ns, at the client."""

    sent_ns: int
    id: str = ""
    text: str = ""
    arrivals_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        """First token - send."""
        return (self.arrivals_ns[0] - self.sent_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        """Time between each token and the next."""
        pairs = zip(self.arrivals_ns, self.arrivals_ns[1:], strict=False)
        return [(b - a) / 1e6 for a, b in pairs]


class Client:
    """One server, one shared connection pool."""

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=REQUEST_DEADLINE_S)
        )

    async def close(self) -> None:
        await self._session.close()

    async def stream(
        self, prompt: Sequence[int] | str, tokens: int, into: Stream | None = None
    ) -> Stream:
        """Greedy, exactly `tokens` tokens. `into` can be watched while it fills. Raises
        RequestFailed."""
        body = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        stream = into or Stream(0)
        stream.sent_ns = time.monotonic_ns()
        try:
            await self._read(body, stream)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise RequestFailed(f"{self.url}: {type(error).__name__}: {error}") from error
        return stream

    async def _read(self, body: dict[str, Any], stream: Stream) -> None:
        async with self._session.post(f"{self.url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RequestFailed(f"{self.url}: {response.status}: {await response.text()}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                arrived = time.monotonic_ns()
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RequestFailed(f"{self.url}: {chunk['error']['message']}")
                stream.arrivals_ns.append(arrived)
                stream.id = chunk["id"]
                stream.text += chunk["choices"][0]["text"]

    async def timeline(self, id: str) -> dict[str, Any]:
        async with self._session.get(f"{self.url}/v1/requests/{id}/timeline") as response:
            response.raise_for_status()
            found: dict[str, Any] = await response.json()
            return found


def random_prompt(tokens: int, seed: int, vocabulary: int = 32_000) -> list[int]:
    """Token ids that share no prefix with those of another seed."""
    generator = random.Random(seed)
    low = min(1_000, vocabulary // 2)
    return [generator.randrange(low, vocabulary) for _ in range(tokens)]

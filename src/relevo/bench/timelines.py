"""Fetches what Relevo's router knows of requests, for the rows of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp

from relevo.bench.rows import ServerFigures

KEPT = 1000  # requests whose timelines the router keeps
LIMIT_S = 5.0
GIVE_UP = 5


async def fetch_figures(
    session: aiohttp.ClientSession, url: str, ids: Sequence[str]
) -> dict[str, ServerFigures]:
    """By id, of the last requests, as many as the router keeps; of none where the first few are
    not known."""
    found: dict[str, ServerFigures] = {}
    unknown = 0
    for id in [id for id in ids if id][-KEPT:]:
        timeline = await _get(session, f"{url}/v1/requests/{id}/timeline")
        if timeline is not None:
            found[id] = server_figures(timeline)
        elif not found and (unknown := unknown + 1) == GIVE_UP:
            break
    return found


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as response:
            if response.status != 200:
                return None
            timeline: dict[str, Any] = await response.json()
            return timeline
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def server_figures(timeline: dict[str, Any]) -> ServerFigures:
    """`timeline` as GET /v1/requests/{id}/timeline answers it."""
    figures, events = timeline["figures"], timeline["events"]
    pushed = [ms for e in events for ms in e.get("layers_ms", [])]
    landed = [e["at_ms"] for e in events if e["name"] == "kv-landed"]
    transfer = round(landed[-1] - min(pushed), 3) if pushed and landed else None
    workers = timeline["workers"]
    return ServerFigures(
        queue_ms=figures["queue_ms"],
        prefill_ms=figures["prefill_ms"],
        transfer_ms=transfer,
        exposed_transfer_ms=figures["exposed_transfer_ms"],
        kv_bytes=figures["bytes"] or None,
        prefill_worker=workers.get("prefill", ""),
        decode_worker=workers.get("decode", ""),
    )

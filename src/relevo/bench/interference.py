"""What prefill does to streams that decode beside it: disaggregated, and co-located in four
ways, at equal devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from relevo.bench.architectures import (
    Architecture,
    Devices,
    EngineOptions,
    all_devices,
    disaggregated,
    replicas,
)
from relevo.bench.client import Client, RequestFailed, Stream, random_prompt
from relevo.bench.output import emit, say
from relevo.bench.statistics import percentile
from relevo.launch.local import LocalDeployment
from relevo.launch.model_source import ModelSource

STREAMS = 4
STREAM_PROMPT = 64
STREAM_TOKENS = 1900
LONG_PROMPT = 1500
CHUNK = 256
ALONE_STEPS = 30
DEFAULT_REPEATS = 5
PAUSE_S = 0.3
Row = dict[str, str | float]


def all_forms(devices: Devices) -> list[Architecture]:
    return [
        disaggregated(devices),
        replicas(devices),
        replicas(devices, CHUNK),
        all_devices(devices),
        all_devices(devices, CHUNK),
    ]


def run_interference(
    model: ModelSource, prompt_tokens: int, repeats: int | None, *, as_json: bool
) -> int:
    """Prints a row per architecture. Returns the exit code."""
    count = repeats or DEFAULT_REPEATS
    cores = sorted(os.sched_getaffinity(0))
    devices = Devices.of(min(2, len(cores)), cores)
    rows = measure_interference(model, EngineOptions(), all_forms(devices), prompt_tokens, count)
    settings = {
        "streams": STREAMS,
        "stream_prompt_tokens": STREAM_PROMPT,
        "long_prompt_tokens": prompt_tokens,
        "long_prompts": count,
        "chunk_tokens": CHUNK,
        "dtype": "bfloat16",
    }
    emit(model.name, settings, rows, as_json=as_json)
    return 0


def measure_interference(
    model: ModelSource,
    options: EngineOptions,
    architectures: Sequence[Architecture],
    prompt_tokens: int,
    repeats: int,
) -> list[Row]:
    """A row per architecture: streams that decode alone, and beside one long prompt at a time."""
    rows = []
    for architecture in architectures:
        name = architecture.name
        say(f"{name}: starting")
        with LocalDeployment(options.deployment(model, architecture)) as deployment:
            rows.append(asyncio.run(_run(deployment.url, model.name, name, prompt_tokens, repeats)))
    return rows


async def _run(url: str, model: str, name: str, prompt_tokens: int, repeats: int) -> Row:
    client = Client(url, model)
    try:
        for warm in range(2):  # every worker has computed a long prompt once
            await client.stream(random_prompt(prompt_tokens, seed=900 + warm), 2)
        alone = await _streams_alone(client)
        say(f"{name}: {repeats} long prompts beside {STREAMS} streams")
        beside = await _streams_beside(client, prompt_tokens, repeats)
    finally:
        await client.close()
    return {
        "architecture": name,
        "alone_step_ms": round(percentile(alone, 0.5), 3),
        "gap_p50_ms": round(percentile(beside.gaps, 0.5), 3),
        "gap_p99_ms": round(percentile(beside.gaps, 0.99), 3),
        "stall_p50_ms": round(percentile(beside.stalls, 0.5), 3),
        "longest_gap_ms": round(max(beside.gaps), 3),
        "ttft_ms": round(percentile(beside.ttfts, 0.5), 3),
    }


async def _streams_alone(client: Client) -> list[float]:
    """Gaps of the streams with nothing beside them, once all decode."""
    streams = await asyncio.gather(
        *(client.stream(random_prompt(STREAM_PROMPT, seed=i), ALONE_STEPS) for i in range(STREAMS))
    )
    together = max(s.arrivals_ns[0] for s in streams), min(s.arrivals_ns[-1] for s in streams)
    beside = [gap for s in streams for gap in _gaps_between(s, *together)]
    return beside or [gap for s in streams for gap in s.gaps_ms]  # they may not have met


class _Beside(NamedTuple):
    """Gaps of the streams between each long prompt's send and its first token; of each stream and
    prompt the longest; and the long prompts' TTFTs. In ms."""

    gaps: list[float]
    stalls: list[float]
    ttfts: list[float]


async def _streams_beside(client: Client, prompt_tokens: int, repeats: int) -> _Beside:
    streams = [Stream(0) for _ in range(STREAMS)]
    tasks = [
        asyncio.create_task(client.stream(random_prompt(STREAM_PROMPT, 50 + i), STREAM_TOKENS, s))
        for i, s in enumerate(streams)
    ]
    try:
        while not all(len(stream.arrivals_ns) > 3 for stream in streams):
            _check_running(tasks)
            await asyncio.sleep(0.01)
        long: list[Stream] = []
        for i in range(repeats):
            long.append(await client.stream(random_prompt(prompt_tokens, seed=100 + i), 1))
            await asyncio.sleep(PAUSE_S)
            _check_running(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    gaps: list[float] = []
    stalls: list[float] = []
    for stream in streams:
        for prompt in long:
            beside = _gaps_overlapping(stream, prompt.sent_ns, prompt.arrivals_ns[0])
            gaps += beside
            stalls.append(max(beside, default=0.0))
    return _Beside(gaps, stalls, [prompt.ttft_ms for prompt in long])


def _check_running(tasks: Sequence[asyncio.Task[Stream]]) -> None:
    """A stream that has failed, or come to its end, would make the figures those of fewer."""
    for task in tasks:
        if task.done():
            task.result()
            raise RequestFailed("a stream ended before the last long prompt; use fewer repeats")


def _gaps_between(stream: Stream, begin_ns: int, end_ns: int) -> list[float]:
    """Gaps that end within the span."""
    pairs = pairwise(stream.arrivals_ns)
    return [(b - a) / 1e6 for a, b in pairs if begin_ns <= b <= end_ns]


def _gaps_overlapping(stream: Stream, begin_ns: int, end_ns: int) -> list[float]:
    """Gaps of which at least a part is within the span."""
    pairs = pairwise(stream.arrivals_ns)
    return [(b - a) / 1e6 for a, b in pairs if b >= begin_ns and a <= end_ns]

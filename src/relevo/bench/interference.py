"""What prefill does to streams that decode beside it: disaggregated, and co-located in four
ways, at equal devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from relevo.bench.architectures import (
    Architecture,
    Devices,
    EngineOptions,
    all_devices,
    disaggregated,
    replicas,
)
from relevo.bench.client import Client, Stream, random_prompt
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


def run_interference(model: ModelSource, repeats: int | None, *, as_json: bool) -> int:
    """Prints a row per architecture. Returns the exit code."""
    count = repeats or DEFAULT_REPEATS
    cores = sorted(os.sched_getaffinity(0))
    devices = Devices.of(min(2, len(cores)), cores)
    rows = measure_interference(model, EngineOptions(), all_forms(devices), count)
    settings = {
        "streams": STREAMS,
        "stream_prompt_tokens": STREAM_PROMPT,
        "long_prompt_tokens": LONG_PROMPT,
        "long_prompts": count,
        "chunk_tokens": CHUNK,
        "dtype": "bfloat16",
    }
    emit(model.name, settings, rows, as_json=as_json)
    return 0


def measure_interference(
    model: ModelSource, options: EngineOptions, architectures: Sequence[Architecture], repeats: int
) -> list[Row]:
    return [_measure(model, options, architecture, repeats) for architecture in architectures]


def _measure(
    model: ModelSource, options: EngineOptions, architecture: Architecture, repeats: int
) -> Row:
    say(f"{architecture.name}: starting")
    with LocalDeployment(options.deployment(model, architecture)) as deployment:
        return asyncio.run(_run(deployment.url, model.name, architecture.name, repeats))


async def _run(url: str, model: str, name: str, repeats: int) -> Row:
    client = Client(url, model)
    try:
        for warm in range(2):  # every worker has computed a long prompt once
            await client.stream(random_prompt(LONG_PROMPT, seed=900 + warm), 2)
        alone = await _streams_alone(client)
        say(f"{name}: {repeats} long prompts beside {STREAMS} streams")
        gaps, ttfts = await _streams_beside(client, repeats)
    finally:
        await client.close()
    return {
        "architecture": name,
        "alone_step_ms": round(percentile(alone, 0.5), 3),
        "gap_p50_ms": round(percentile(gaps, 0.5), 3),
        "gap_p99_ms": round(percentile(gaps, 0.99), 3),
        "longest_gap_ms": round(max(gaps), 3),
        "ttft_ms": round(percentile(ttfts, 0.5), 3),
    }


async def _streams_alone(client: Client) -> list[float]:
    """Gaps of the streams with nothing beside them, once all decode."""
    streams = await asyncio.gather(
        *(client.stream(random_prompt(STREAM_PROMPT, seed=i), ALONE_STEPS) for i in range(STREAMS))
    )
    together = max(s.arrivals_ns[0] for s in streams), min(s.arrivals_ns[-1] for s in streams)
    return [gap for s in streams for gap in _gaps_between(s, *together)]


async def _streams_beside(client: Client, repeats: int) -> tuple[list[float], list[float]]:
    """Gaps of the streams from the first long prompt's send to the last one's first token, and
    the long prompts' TTFTs."""
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
            long.append(await client.stream(random_prompt(LONG_PROMPT, seed=100 + i), 1))
            await asyncio.sleep(PAUSE_S)
            _check_running(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    begin, end = long[0].sent_ns, long[-1].arrivals_ns[0]
    gaps = [gap for stream in streams for gap in _gaps_between(stream, begin, end)]
    return gaps, [stream.ttft_ms for stream in long]


def _check_running(tasks: Sequence[asyncio.Task[Stream]]) -> None:
    """A stream that has failed, or come to its end, would make the figures those of fewer."""
    for task in tasks:
        if task.done():
            task.result()
            raise RuntimeError("a stream ended before the last long prompt; use fewer repeats")


def _gaps_between(stream: Stream, begin_ns: int, end_ns: int) -> list[float]:
    """Gaps that end within the span."""
    pairs = zip(stream.arrivals_ns, stream.arrivals_ns[1:], strict=False)
    return [(b - a) / 1e6 for a, b in pairs if begin_ns <= b <= end_ns]

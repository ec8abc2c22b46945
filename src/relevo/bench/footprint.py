"""What a deployment takes: time to start, memory of each process, processor time when idle."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from relevo.bench.client import Client, random_prompt
from relevo.bench.output import emit, say
from relevo.bench.processes import cpu_seconds, pss_mib
from relevo.bench.statistics import percentile
from relevo.launch.local import DeploymentConfig, LocalDeployment
from relevo.launch.model_source import ModelSource

DEFAULT_REPEATS = 3
IDLE_S = 20.0
SETTLE_S = 2.0


def run_footprint(model: ModelSource, repeats: int | None, *, as_json: bool) -> int:
    """Prints a row per process. Returns the exit code."""
    count = repeats or DEFAULT_REPEATS
    starts: list[float] = []
    rows: list[dict[str, Any]] = []
    for repeat in range(count):
        say(f"start {repeat + 1} of {count}")
        begin = time.monotonic()
        with LocalDeployment(DeploymentConfig(model=model)) as deployment:
            starts.append(time.monotonic() - begin)
            if repeat + 1 == count:
                asyncio.run(_work(deployment.url, model.name))
                time.sleep(SETTLE_S)
                rows = _watch_idle({p.name: p.pid for p in deployment.processes})
    settings = {
        "start_s": round(percentile(starts, 0.5), 2),
        "starts": count,
        "idle_s": IDLE_S,
        "idle_core_percent_in_all": round(sum(row["idle_core_percent"] for row in rows), 2),
        "dtype": "bfloat16",
    }
    say(f"start to ready: {settings['start_s']} s (median of {count})")
    emit(model.name, settings, rows, as_json=as_json)
    return 0


async def _work(url: str, model: str) -> None:
    """Prompts of many lengths, alone and at once, so that pools and caches have their size."""
    client = Client(url, model)
    try:
        for n in range(1, 2000, 97):
            await client.stream(random_prompt(n, seed=n), 4)
        await asyncio.gather(*(client.stream(random_prompt(200, seed=i), 32) for i in range(8)))
    finally:
        await client.close()


def _watch_idle(pids: dict[str, int]) -> list[dict[str, Any]]:
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    say(f"idle for {IDLE_S:.0f} s")
    time.sleep(IDLE_S)
    return [
        {
            "process": name,
            "pss_mib": round(pss_mib(pid)),
            "idle_core_percent": round((cpu_seconds(pid) - before[name]) / IDLE_S * 100, 2),
        }
        for name, pid in pids.items()
    ]

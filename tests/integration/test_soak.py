"""Hand-offs of random length by the thousand, under faults, a part of them cancelled at random
moments: no wrong token, no leak. SOAK_HANDOFFS sets how many."""

import asyncio
import os
import random
import time
import urllib.request
from collections import Counter

import aiohttp
import psutil
import pytest

from .conftest import deployed, random_prompt

HANDOFFS = int(os.environ.get("SOAK_HANDOFFS", "10000"))
CANCELLED = 0.15
PARALLEL = 8
GENERATED = 3
FAULTS = "seed=11,delay=3000,error=0.0005,stall=0.0005,cut=0.00005"
SETTINGS = ("--dtype", "float32", "--kv-memory", "64", "--local-prefill-tokens", "0")
PROMPTS = [random_prompt(random.Random(i).randint(1, 90), 900 + i) for i in range(150)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


async def one(session, api, generator, expected):
    index = generator.randrange(len(PROMPTS))
    body = {
        "model": api.model, "prompt": PROMPTS[index], "max_tokens": GENERATED, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip

    async def ask():
        async with session.post(f"{api.url}/v1/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["choices"][0]["token_ids"] == expected[index]

    if generator.random() >= CANCELLED:
        await ask()
        return
    try:
        await asyncio.wait_for(ask(), generator.uniform(0, 2))
    except TimeoutError:
        return


async def run(api, expected, count):
    generator = random.Random(count)
    gate = asyncio.Semaphore(PARALLEL)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def guarded():
            async with gate:
                await one(session, api, generator, expected)

        await asyncio.gather(*(guarded() for _ in range(count)))


def counters(api):
    """What workers and router have counted, summed over workers."""
    with urllib.request.urlopen(f"{api.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    totals = Counter()
    for line in lines:
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            totals[name.partition("{")[0].removeprefix("relevo_worker_")] += float(value)
    return totals


def resources(api):
    """(descriptors, private MiB) of each process."""
    found = {}
    for process in api.deployment.processes:
        inside = psutil.Process(process.pid)
        found[process.name] = (inside.num_fds(), inside.memory_full_info().uss >> 20)
    return found


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_ten_thousand_handoffs_under_faults(smollm, transport):
    with deployed(smollm, mixed=1, arguments=SETTINGS) as api:
        expected = api.tokens_at_once(PROMPTS, GENERATED)
    arguments = (*SETTINGS, "--faults", FAULTS)
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        asyncio.run(run(api, expected, HANDOFFS // 10))
        api.wait_idle(60)
        before = resources(api)
        while counters(api)["handoff_landed_total"] < HANDOFFS:
            asyncio.run(run(api, expected, HANDOFFS // 4))
            time.sleep(1.5)  # workers report with their heartbeats
        api.wait_idle(60)
        after = resources(api)
        seen = counters(api)
    for name in ("handoff_lost_total", "handoff_cancelled_total", "transfer_errors_total"):
        assert seen[name] > 0, f"{name}: the faults did nothing"
    for name, (descriptors, memory) in before.items():
        assert after[name][0] <= descriptors + 8, (before, after)
        assert after[name][1] <= memory + 60, (before, after)

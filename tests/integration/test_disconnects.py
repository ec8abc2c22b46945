"""Clients that go away: everything of theirs is freed."""

import asyncio
import random
import time

import aiohttp
import psutil
import pytest

from .conftest import random_prompt

REQUESTS = 500
LEAVING = 0.2
PARALLEL = 8


async def one(session, api, generator, seed):
    prompt = random_prompt(generator.randint(1, 60), seed)
    body = {
        "model": api.model, "prompt": prompt, "max_tokens": generator.randint(1, 10),
        "ignore_eos": True, "stream": generator.random() < 0.5,
    }  # fmt: skip

    async def ask():
        async with session.post(f"{api.url}/v1/completions", json=body) as response:
            assert response.status == 200
            assert await response.read()

    if generator.random() >= LEAVING:
        begin = time.monotonic()
        await ask()
        api.took = 0.9 * api.took + 0.1 * (time.monotonic() - begin)
        return "answered"
    try:  # anywhere in the life of a request, on whatever machine
        await asyncio.wait_for(ask(), generator.uniform(0, 1.2 * api.took))
    except TimeoutError:
        return "left"
    return "answered"


async def many(api, count):
    generator = random.Random(count)
    gate = asyncio.Semaphore(PARALLEL)
    api.took = 0.3
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def guarded(seed):
            async with gate:
                return await one(session, api, generator, seed)

        return await asyncio.gather(*(guarded(seed) for seed in range(count)))


def resident(api):
    """Private memory of each worker, MiB."""
    return {
        name: psutil.Process(worker["pid"]).memory_full_info().uss >> 20
        for name, worker in api.loads().items()
    }


@pytest.mark.timeout(600)
def test_five_hundred_requests_a_fifth_of_whose_clients_leave(split):
    asyncio.run(many(split, 100))  # caches, arenas and pools have their size
    split.wait_idle()
    before = resident(split)
    results = asyncio.run(many(split, REQUESTS))
    assert results.count("left") > REQUESTS * LEAVING / 3
    split.wait_idle()
    after = resident(split)
    assert all(after[name] < before[name] + 40 for name in before), (before, after)
    assert split.tokens([1, 2, 3], 2)
    assert split.metric("relevo_queued") == split.metric("relevo_running") == 0

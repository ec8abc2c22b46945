"""Whatever happens to a hand-off, no engine dies, no request hangs or is answered wrongly, and
every block comes back, by vLLM's own count."""

import asyncio
import http.client
import json
import random
import signal
import threading
import time

import aiohttp
import psutil
import pytest

from .conftest import MODEL, answers_of_one_server, pair, random_prompt

CHUNKED = ("--max-num-batched-tokens", "256")
# Each new to every prefix cache when its turn comes, so that it takes its time.
LONG = [random_prompt(1500, 8 + i) for i in range(3)]
SHORT = [random_prompt(n, 70 + n) for n in range(2, 302, 10)]


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    return answers_of_one_server(folder, logs, [*LONG, *SHORT])


@pytest.fixture
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


class UnderWay:
    """A long prompt, on its way through both sides."""

    def __init__(self, proxy, prompt):
        self._answers = []
        self._thread = threading.Thread(target=lambda: self._answers.append(proxy.tokens(prompt)))
        self._thread.start()
        time.sleep(1)  # of more than two
        assert not self._answers

    def tokens(self, seconds=60):
        self._thread.join(seconds)
        assert self._answers, "no answer in time"
        return self._answers[0]


def works(proxy, expected):
    for prompt in SHORT[:5]:
        assert proxy.tokens(prompt) == expected[tuple(prompt)]


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_stopped_aborted_and_killed(folder, logs, expected, transport):
    """One after the other, on one pair: each starts from what the one before has left."""
    settings = {"transport": transport}
    with pair(folder, logs, *CHUNKED, prefill=settings, decode=settings) as (
        prefill,
        decode,
        proxy,
    ):
        works(proxy, expected)

        # The client leaves in mid-transfer.
        for seed in range(3):  # each new to both prefix caches
            body = {"model": MODEL, "prompt": random_prompt(1500, 600 + seed), "max_tokens": 8}
            connection = http.client.HTTPConnection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
            connection.request("POST", "/v1/completions", json.dumps(body))
            time.sleep(0.7)
            connection.close()
        prefill.wait_idle()
        decode.wait_idle()
        assert decode.event("handoff_cancelled") == 3
        works(proxy, expected)

        # The prefill server stands still in mid-transfer, and goes on.
        under_way = UnderWay(proxy, LONG[0])
        prefill.signal(signal.SIGSTOP)
        assert under_way.tokens() == expected[tuple(LONG[0])]
        decode.wait_idle()
        assert decode.event("handoff_lost") == 1
        prefill.signal(signal.SIGCONT)
        prefill.wait_idle()
        works(proxy, expected)

        # The decode server stands still, is given up, and goes on.
        under_way = UnderWay(proxy, LONG[1])
        decode.signal(signal.SIGSTOP)
        time.sleep(12)
        decode.signal(signal.SIGCONT)
        assert under_way.tokens() == expected[tuple(LONG[1])]
        prefill.wait_idle()
        decode.wait_idle()
        works(proxy, expected)

        # The prefill server is killed.
        under_way = UnderWay(proxy, LONG[2])
        prefill.signal(signal.SIGKILL)
        assert under_way.tokens() == expected[tuple(LONG[2])]
        decode.wait_idle()
        works(proxy, expected)
        assert proxy.counts()["decode_only"] > 0


def test_a_decode_server_killed_leaves_nothing_behind(folder, logs, expected):
    with pair(folder, logs, *CHUNKED) as (prefill, decode, proxy):
        works(proxy, expected)
        killing = threading.Timer(1, decode.signal, [signal.SIGKILL])
        killing.start()
        with pytest.raises(AssertionError, match="did not answer"):
            proxy.tokens(LONG[0])
        prefill.wait_idle()
        assert prefill.tokens(LONG[0]) == expected[tuple(LONG[0])]


def test_a_prefill_request_that_is_preempted_is_computed_by_the_decode_side(folder, logs, expected):
    # Of 21 blocks vLLM keeps one to itself.
    blocks = ("--num-gpu-blocks-override", "21", "--max-model-len", "2048")
    with pair(folder, logs, *CHUNKED, *blocks) as (prefill, decode, proxy):
        works(proxy, expected)
        growing = threading.Thread(target=prefill.tokens, args=(random_prompt(1021, 1), 60))
        growing.start()
        while not prefill.metric("vllm:num_requests_running"):
            time.sleep(0.05)
        assert proxy.tokens(LONG[0]) == expected[tuple(LONG[0])]
        growing.join(60)
        assert prefill.metric("vllm:num_preemptions_total") >= 1
        assert decode.event("handoff_lost") == 1
        prefill.wait_idle()
        decode.wait_idle()
        works(proxy, expected)


def test_writes_that_fail_late_and_stalled(folder, logs, expected):
    settings = {"faults": "seed=3,delay=2000,error=0.01,stall=0.01,cut=0.002", "verify_kv": True}
    with pair(folder, logs, prefill=settings, decode=settings) as (prefill, decode, proxy):
        for _ in range(3):
            assert proxy.at_once(SHORT) == [expected[tuple(p)] for p in SHORT]
        assert decode.event("handoff_lost") > 0
        assert decode.event("handoff_verified") > 0
        prefill.wait_idle()
        decode.wait_idle()


HANDOFFS = 1000


def test_a_thousand_handoffs_of_which_some_are_aborted(folder, logs, expected):
    with pair(folder, logs) as (prefill, decode, proxy):
        asyncio.run(many(proxy.url, expected, HANDOFFS // 2))
        before = resources(prefill, decode)
        while decode.event("handoff_landed") < HANDOFFS:
            asyncio.run(many(proxy.url, expected, HANDOFFS // 4))
        prefill.wait_idle()
        decode.wait_idle()
        assert decode.event("handoff_cancelled") > 0
        after = resources(prefill, decode)
        print({name: (before[name], after[name]) for name in after})
        for name, (descriptors, memory) in after.items():
            assert descriptors <= before[name][0] + 8, (before, name)
            assert memory <= before[name][1] + 60, (before, name)


async def many(url, expected, count):
    generator = random.Random(count)
    gate = asyncio.Semaphore(8)

    async def one(session, prompt):
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip

        async def ask():
            async with session.post(f"{url}/v1/completions", json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                assert answer["choices"][0]["token_ids"] == expected[tuple(prompt)]

        async with gate:
            if generator.random() < 0.15:
                try:
                    await asyncio.wait_for(ask(), generator.uniform(0, 0.5))
                except TimeoutError:
                    return
            else:
                await ask()

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await asyncio.gather(*(one(session, generator.choice(SHORT)) for _ in range(count)))


def resources(*servers):
    """(descriptors, private MiB) of each process."""
    found = {}
    for server in servers:
        parent = psutil.Process(server.process.pid)
        for process in (parent, *parent.children(recursive=True)):
            found[process.pid] = process.num_fds(), process.memory_full_info().uss >> 20
    return found

"""The load generator against a server of the test's own, over a real socket."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager

import pytest
from aiohttp import web

from relevo.bench.endpoints import discover
from relevo.bench.load import Target, replay
from relevo.bench.load_process import run_load
from relevo.bench.metrics import validity
from relevo.bench.trace import Arrival, Segment, Trace
from relevo.errors import ConfigError

STEP_S = 0.02


class Server:
    """Streams `max_tokens` tokens, STEP_S apart; prompts of 13 tokens are refused, of 14 cut off
    in mid-answer, of 15 fail in mid-answer, of 16 answered with a token less."""

    def __init__(self):
        self.bodies = []
        self.running = 0
        self.most = 0

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        kind = len(body["prompt"])
        if kind == 13:
            return web.json_response({"error": {"message": "full"}}, status=429)
        self.running += 1
        self.most = max(self.most, self.running)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        tokens = body["max_tokens"] - (kind == 16)
        for i in range(tokens):
            await asyncio.sleep(STEP_S)
            if i == 2 and kind == 14:
                request.transport.close()
                break
            if i == 2 and kind == 15:
                await self._say(response, {"error": {"message": "out of pages"}})
                break
            last = i + 1 == tokens
            choice = {"index": 0, "text": "x", "token_ids": [i],
                      "finish_reason": "length" if last else None}  # fmt: skip
            await self._say(response, {"id": f"r{len(self.bodies)}", "choices": [choice]})
        self.running -= 1
        return response

    async def _say(self, response, chunk):
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    async def models(self, request):
        return web.json_response({"data": [{"id": "m", "max_model_len": 99}]})


@contextmanager
def serving(server):
    """On a thread of its own, so that it has its own event loop."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found = {}

    async def start():
        app = web.Application()
        app.router.add_post("/v1/completions", server.complete)
        app.router.add_get("/v1/models", server.models)
        found["runner"] = web.AppRunner(app)
        await found["runner"].setup()
        site = web.TCPSite(found["runner"], "127.0.0.1", 0)
        await site.start()
        found["port"] = site._server.sockets[0].getsockname()[1]
        ready.set()

    def run():
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{found['port']}"
    finally:
        asyncio.run_coroutine_threadsafe(found["runner"].cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def trace_of(*requests, span=2.0, concurrency=None):
    arrivals = (Arrival(float(at), (Segment(i, prompt),), out) for i, (at, prompt, out) in
                enumerate(requests))  # fmt: skip
    return Trace("t", tuple(arrivals), span, concurrency)


def test_requests_go_out_at_their_time_whether_or_not_others_are_done():
    server = Server()
    with serving(server) as url:
        run = replay(Target(url, "m", 30_000), trace_of((0, 8, 30), (0.1, 9, 30), (0.3, 10, 2)))
    assert [row.outcome for row in run.rows] == ["ok"] * 3
    assert [round(row.scheduled_ms) for row in run.rows] == [0, 100, 300]
    assert server.most == 3
    first = run.rows[0]
    assert (first.tokens, first.prompt_tokens, first.id) == (30, 8, "r1")
    assert first.ttft_ms >= STEP_S * 1e3 - 1  # how much later is the machine's affair
    assert first.tpot_ms >= STEP_S * 1e3 * 0.95
    assert server.bodies[0]["ignore_eos"] is True


def test_every_way_to_end_has_its_outcome():
    with serving(Server()) as url:
        run = replay(
            Target(url, "m", 30_000), trace_of(*((0, kind, 4) for kind in (12, 13, 14, 15, 16)))
        )
    assert [row.outcome for row in run.rows] == ["ok", "refused", "failed", "failed", "failed"]
    assert [row.tokens for row in run.rows] == [4, 0, 2, 2, 3]
    assert "full" in run.rows[1].error
    assert run.rows[2].error
    assert run.rows[3].error == "out of pages"
    assert run.rows[4].error == "ended after 3 of 4 tokens"


def test_nobody_there_is_a_failure_of_each():
    run = replay(Target("http://127.0.0.1:9", "m", 30_000), trace_of((0, 8, 3)))
    assert run.rows[0].outcome == "failed"
    assert "Connect" in run.rows[0].error
    assert "no request was answered" in validity(run)[0]


def test_a_closed_loop_keeps_so_many_under_way():
    server = Server()
    with serving(server) as url:
        trace = trace_of(*((0, 8, 3) for _ in range(9)), concurrency=2)
        run = replay(Target(url, "m", 30_000), trace)
    assert server.most == 2
    assert len(run.rows) == 9
    assert run.span_s >= 4 * 3 * STEP_S


def test_salt_changes_tokens_and_nothing_else():
    server = Server()
    with serving(server) as url:
        for salt in (0, 0, 1):
            replay(Target(url, "m", 30_000), trace_of((0, 8, 1)), salt)
    first, again, other = (body["prompt"] for body in server.bodies)
    assert first == again != other
    assert len(other) == 8


def test_an_overloaded_generator_is_found_out():
    """Far more streams than a process can stamp: it says so instead of reporting their latency."""
    with serving(Server()) as url:
        trace = trace_of(*((i / 4000, 8, 40) for i in range(2000)), span=0.5)
        run = replay(Target(url, "m", 30_000), trace)
    assert validity(run)


def test_in_a_process_of_its_own_it_sees_the_same():
    with serving(Server()) as url:
        seen = []
        trace = trace_of((0, 8, 5), (0.2, 9, 5))
        run = run_load(Target(url, "m", 30_000), trace, (), 0, seen.append)
        assert [row.tokens for row in run.rows] == [5, 5]
        assert run.trace == trace.digest
        assert seen
        assert run.begin_ns < time.monotonic_ns()


def test_a_server_says_what_it_serves():
    with serving(Server()) as url:
        assert discover(f"{url}/v1/", None).context == 99
        with pytest.raises(ConfigError, match="serves m, not other"):
            discover(url, "other")
    with pytest.raises(ConfigError, match="no OpenAI-compatible server"):
        discover("http://127.0.0.1:9", None)

"""The load generator: replays a trace against any server that speaks the OpenAI API, over HTTP with
streaming, and records when each token came. Requests are sent at their time whether or not others
are done (open loop). Lines are only stamped while requests run, and read when all are over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from relevo.bench.prompts import PromptMaker
from relevo.bench.rows import LoadRun, Outcome, RequestRow
from relevo.bench.statistics import percentile
from relevo.bench.streams import read_stream
from relevo.bench.timelines import fetch_figures
from relevo.bench.trace import Trace

REQUEST_DEADLINE_S = 120.0
TICK_S = 0.01
LEAD_S = 0.2  # from the end of preparations to the trace's begin
REFUSALS = (429, 503)


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server and the model to ask for."""

    url: str
    model: str
    vocabulary: int


@dataclass
class _Seen:
    """Of one request, times in ns on CLOCK_MONOTONIC."""

    sent_ns: int = 0
    status: int = 0
    lines: list[tuple[int, bytes]] = field(default_factory=list)
    error: str = ""


def replay(target: Target, trace: Trace, salt: int = 0) -> LoadRun:
    """Blocks until every request is over or past its deadline. `salt` as in PromptMaker."""
    return asyncio.run(_Replay(target, trace, salt).run())


class _Replay:
    def __init__(self, target: Target, trace: Trace, salt: int) -> None:
        self._target = target
        self._trace = trace
        prompt = PromptMaker(target.vocabulary, salt)
        self._bodies = [
            json.dumps(_body(target.model, prompt(a), a.output_tokens)).encode()
            for a in trace.arrivals
        ]
        self._seen = [_Seen() for _ in trace.arrivals]
        self._lags_ms: list[float] = []

    async def run(self) -> LoadRun:
        timeout = aiohttp.ClientTimeout(total=REQUEST_DEADLINE_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self._session:
            cpu = time.process_time()
            begin_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            ticks = asyncio.create_task(self._tick())
            await asyncio.sleep((begin_ns - time.monotonic_ns()) / 1e9)
            if self._trace.concurrency:
                await self._closed_loop(self._trace.concurrency)
            else:
                await self._open_loop(begin_ns)
            elapsed_s = (time.monotonic_ns() - begin_ns) / 1e9
            cpu = time.process_time() - cpu
            ticks.cancel()
            rows = [self._row(index, begin_ns) for index in range(len(self._seen))]
            servers = await fetch_figures(self._session, self._target.url, [r.id for r in rows])
        rows = [msgspec.structs.replace(row, server=servers.get(row.id)) for row in rows]
        return LoadRun(
            trace=self._trace.digest,
            begin_ns=begin_ns,
            span_s=elapsed_s if self._trace.concurrency else self._trace.span_s,
            elapsed_s=round(elapsed_s, 3),
            lag_p99_ms=round(percentile(self._lags_ms or [0.0], 0.99), 3),
            cpu_s=round(cpu, 3),
            rows=tuple(rows),
        )

    async def _tick(self) -> None:
        """How late the event loop wakes is how late it stamps."""
        while True:
            due = time.monotonic_ns() + int(TICK_S * 1e9)
            await asyncio.sleep(TICK_S)
            self._lags_ms.append(max(0.0, (time.monotonic_ns() - due) / 1e6))

    async def _open_loop(self, begin_ns: int) -> None:
        running: list[asyncio.Task[None]] = []
        for index, arrival in enumerate(self._trace.arrivals):
            due_ns = begin_ns + int(arrival.at_s * 1e9)
            if (wait_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(wait_ns / 1e9)
            running.append(asyncio.create_task(self._ask(index)))
        await asyncio.gather(*running)

    async def _closed_loop(self, concurrency: int) -> None:
        waiting = iter(range(len(self._seen)))

        async def one_after_another() -> None:
            for index in waiting:
                await self._ask(index)

        await asyncio.gather(*(one_after_another() for _ in range(concurrency)))

    async def _ask(self, index: int) -> None:
        seen = self._seen[index]
        seen.sent_ns = time.monotonic_ns()
        try:
            async with self._session.post(
                f"{self._target.url}/v1/completions",
                data=self._bodies[index],
                headers={"Content-Type": "application/json"},
            ) as response:
                seen.status = response.status
                if response.status != 200:
                    seen.error = (await response.text())[:500]
                    return
                async for line in response.content:
                    if line.startswith(b"data:"):
                        seen.lines.append((time.monotonic_ns(), line))
        except TimeoutError:
            seen.error = f"not over within {REQUEST_DEADLINE_S:.0f} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            seen.error = f"{type(error).__name__}: {error}"

    def _row(self, index: int, begin_ns: int) -> RequestRow:
        arrival, seen = self._trace.arrivals[index], self._seen[index]

        def ms(at_ns: int) -> float:
            return round((at_ns - begin_ns) / 1e6, 3)

        stream = read_stream(seen.lines)
        error = seen.error or stream.error
        tokens = sum(stream.counts)
        if not error and not stream.finished:
            error = "the stream ended before the answer did"
        elif not error and stream.counted and tokens < arrival.output_tokens:
            # Shorter answers would make a server look faster.
            error = f"ended after {tokens} of {arrival.output_tokens} tokens"
        outcome: Outcome = "failed" if error else "ok"
        if seen.status in REFUSALS:
            outcome = "refused"
        sent_ms = ms(seen.sent_ns)
        counts = tuple(stream.counts)
        return RequestRow(
            index=index,
            scheduled_ms=sent_ms if self._trace.concurrency else round(arrival.at_s * 1e3, 3),
            sent_ms=sent_ms,
            outcome=outcome,
            prompt_tokens=arrival.prompt_tokens,
            wanted_tokens=arrival.output_tokens,
            arrivals_ms=tuple(ms(at) for at in stream.arrivals_ns),
            chunk_tokens=() if all(count == 1 for count in counts) else counts,
            id=stream.id,
            error=error,
        )


def _body(model: str, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,  # ours and vLLM's: how many tokens a chunk carries
        "stream": True,
        "stream_options": {"include_usage": True},
    }

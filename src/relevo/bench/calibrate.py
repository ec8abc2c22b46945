"""How fast this machine is with this model, so that budgets and load can be set to fit: a few
requests, one at a time, before anything is compared."""

from __future__ import annotations

import asyncio

import msgspec

from relevo.bench.client import Client, random_prompt
from relevo.bench.endpoints import discover
from relevo.bench.metrics import Budgets
from relevo.bench.statistics import percentile
from relevo.bench.subjects import Running
from relevo.bench.trace import Trace

REPEATS = 3
PROMPT, STEPS = 512, 40
TTFT_FACTOR, TPOT_FACTOR, ITL_FACTOR = 3.0, 2.5, 5.0
# Decoding requests share their steps: what one step costs each where a few run.
SHARED_STEP = 0.5
MIN_CHUNK = 16


class Pace(msgspec.Struct, frozen=True):
    """Of one worker with nothing beside it. `prompt_ms`: TTFT of a prompt of `prompt_tokens`;
    `context`: the longest that the server takes, where it says."""

    prompt_tokens: int
    prompt_ms: float
    step_ms: float
    context: int | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.prompt_tokens / self.prompt_ms * 1e3


def measure_pace(running: Running) -> Pace:
    context = discover(running.target.url, running.target.model).context

    async def ask() -> Pace:
        client = Client(running.target.url, running.target.model)
        vocabulary = running.target.vocabulary
        try:
            times = []
            for i in range(REPEATS):
                prompt = random_prompt(PROMPT, running.seed(77_000 + i), vocabulary)
                times.append((await client.stream(prompt, 1)).ttft_ms)
            stream = await client.stream(random_prompt(32, running.seed(77_777), vocabulary), STEPS)
        finally:
            await client.close()
        steps = percentile(stream.gaps_ms, 0.5)
        return Pace(PROMPT, round(percentile(times, 0.5), 3), round(steps, 3), context)

    return asyncio.run(ask())


def budgets_for(pace: Pace, trace: Trace) -> Budgets:
    """Some multiples of what an idle worker needs, for the TTFT with one of the trace's longer
    prompts."""
    longer = percentile([a.prompt_tokens for a in trace.arrivals], 0.9)
    ttft_ms = TTFT_FACTOR * (longer / pace.tokens_per_s * 1e3 + pace.step_ms)
    return Budgets(
        ttft_ms=round(ttft_ms, 1),
        tpot_ms=round(TPOT_FACTOR * pace.step_ms, 1),
        itl_p99_ms=round(ITL_FACTOR * pace.step_ms, 1),
    )


def fitting_chunk(pace: Pace, budgets: Budgets) -> int:
    """The largest power of two, in tokens, whose step beside decoding requests keeps the budget of
    their gaps; at least MIN_CHUNK."""
    room_s = (budgets.itl_p99_ms - pace.step_ms) / 1e3
    tokens = max(MIN_CHUNK, int(room_s * pace.tokens_per_s))
    return 1 << tokens.bit_length() - 1


def device_seconds(trace: Trace, pace: Pace) -> float:
    """What one request of the trace keeps a device busy for, on average."""
    prompts = sum(a.prompt_tokens for a in trace.arrivals) / pace.tokens_per_s
    answers = sum(a.output_tokens for a in trace.arrivals) * pace.step_ms / 1e3 * SHARED_STEP
    return (prompts + answers) / len(trace.arrivals)


def rate_for(trace: Trace, pace: Pace, devices: int, utilisation: float) -> float:
    """Requests per second that keep the devices busy for this share of the time."""
    return utilisation * devices / device_seconds(trace, pace)

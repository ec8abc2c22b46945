"""What a hand-off costs: a prefill and a decode worker against one co-located worker on the
prefill worker's cores, on an otherwise idle machine, requests interleaved one by one."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from relevo.bench.client import Client, random_prompt
from relevo.bench.output import emit, say
from relevo.bench.statistics import percentiles
from relevo.launch.cores import own_cores
from relevo.launch.local import DeploymentConfig, LocalDeployment
from relevo.launch.model_source import ModelSource

TRANSPORTS = ("local", "tcp")
PROMPT_TOKENS = (128, 512, 1500)
GENERATED = 8
DEFAULT_REPEATS = 15
# The timeline's last event reaches the router a moment after the last token.
TIMELINE_DELAY_S = 0.2


class _Samples:
    """Of one (transport, prompt length)."""

    def __init__(self) -> None:
        self.ttft_colocated: list[float] = []
        self.ttft_disaggregated: list[float] = []
        self.decode_step: list[float] = []
        self.exposed_transfer: list[float] = []
        self.ready_to_step: list[float] = []

    def row(self, transport: str, prompt_tokens: int) -> dict[str, Any]:
        return {
            "transport": transport,
            "prompt_tokens": prompt_tokens,
            "ttft_colocated_ms": percentiles(self.ttft_colocated),
            "ttft_disaggregated_ms": percentiles(self.ttft_disaggregated),
            "decode_step_ms": percentiles(self.decode_step),
            "exposed_transfer_ms": percentiles(self.exposed_transfer),
            "ready_to_step_ms": percentiles(self.ready_to_step),
        }


def run_handoff(model: ModelSource, repeats: int | None, *, verify_kv: bool, as_json: bool) -> int:
    """Prints rows by transport and prompt length. Returns the exit code."""
    count = repeats or DEFAULT_REPEATS
    rows: list[dict[str, Any]] = []
    for transport in TRANSPORTS:
        rows += _measure(model, transport, count, verify_kv)
    settings = {
        "repeats": count,
        "generated_tokens": GENERATED,
        "colocated": "one mixed worker on the prefill worker's cores, as many threads",
        "dtype": "bfloat16",
        "verify_kv": verify_kv,
    }
    emit(model.name, settings, rows, as_json=as_json)
    return 0


def _measure(
    model: ModelSource, transport: str, repeats: int, verify_kv: bool
) -> list[dict[str, Any]]:
    prefill_cores = own_cores(2)[0]
    arguments = ("--verify-kv",) if verify_kv else ()
    split = DeploymentConfig(model=model, transport=transport, worker_arguments=arguments)
    mixed = DeploymentConfig(
        model=model, prefill=0, decode=0, mixed=1, worker_cores=(prefill_cores,)
    )
    with ExitStack() as stack:
        say(f"{transport}: starting a split and a co-located deployment")
        disaggregated = stack.enter_context(LocalDeployment(split))
        colocated = stack.enter_context(LocalDeployment(mixed))
        return asyncio.run(_compare(model, transport, repeats, disaggregated.url, colocated.url))


async def _compare(
    model: ModelSource, transport: str, repeats: int, split_url: str, mixed_url: str
) -> list[dict[str, Any]]:
    split, mixed = Client(split_url, model.name), Client(mixed_url, model.name)
    samples = {n: _Samples() for n in PROMPT_TOKENS}
    try:
        for repeat in range(-1, repeats):  # the first round warms up and is not counted
            for n in PROMPT_TOKENS:
                say(f"{transport}: {n} tokens, {repeat + 1} of {repeats}")
                into = samples[n] if repeat >= 0 else _Samples()
                await _pair(split, mixed, n, repeat, into)
    finally:
        await split.close()
        await mixed.close()
    return [samples[n].row(transport, n) for n in PROMPT_TOKENS]


async def _pair(split: Client, mixed: Client, n: int, repeat: int, into: _Samples) -> None:
    """The same prompt through both, the order turning with each repeat."""
    prompt = random_prompt(n, seed=n * 1000 + repeat)
    for colocated in (True, False) if repeat % 2 else (False, True):
        if colocated:
            stream = await mixed.stream(prompt, GENERATED)
            into.ttft_colocated.append(stream.ttft_ms)
            into.decode_step += stream.gaps_ms
            continue
        stream = await split.stream(prompt, GENERATED)
        into.ttft_disaggregated.append(stream.ttft_ms)
        await asyncio.sleep(TIMELINE_DELAY_S)
        figures = (await split.timeline(stream.id))["figures"]
        if figures["exposed_transfer_ms"] is None:
            raise RuntimeError(f"{stream.id} was not handed off")
        into.exposed_transfer.append(figures["exposed_transfer_ms"])
        into.ready_to_step.append(figures["ready_to_step_ms"])

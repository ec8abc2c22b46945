"""Hand-offs between two vLLM servers on one core each: Relevo's connector beside vLLM's own
NixlConnector, as shipped and tuned, and beside one co-located server on one core.

    scripts/setup-vllm.sh && .venv-vllm/bin/pip install nixl
    .venv-vllm/bin/python benchmarks/vllm_peers.py [--rounds N] [--dtype float32] [--json]

Modes run one after the other, in turn, so that what one leaves running cannot slow another. The
client speaks to both servers itself, as a proxy would: to both at once for Relevo, one after the
other for NIXL, whose decode side pulls what the prefill side's answer names. Processors without
bfloat16 products of their own compute faster in float32, and hand over twice the bytes.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from relevo.bench.machine import describe_machine
from relevo.cli.export import huggingface_folder
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.model_source import resolve_model

HERE = Path(__file__).parent
PROMPTS = (32, 512, 1500)
REPEATS = 7
STEPS = 100
STREAMS, STREAM_TOKENS, LONG_PROMPTS, GAP_REPEATS = 4, 400, 3, 3
START_S = 240
RELEVO = {
    "kv_connector": "RelevoConnector",
    "kv_connector_module_path": "relevo.worker.vllm_connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
TUNED = NIXL | {
    "kv_connector": "TunedNixlConnector", "kv_connector_module_path": "nixl_tuned",
}  # fmt: skip
MODES = {"co-located": None, "relevo": RELEVO, "nixl tuned": TUNED, "nixl as shipped": NIXL}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Model:
    folder: Path
    dtype: str


class Server:
    """A vLLM server; `core` None: wherever the kernel puts it."""

    def __init__(self, model: Model, core: int | None, connector: dict[str, str] | None) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environment = {
            "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": str(HERE),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind" if core is None else str(core),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        transfer = ["--kv-transfer-config", json.dumps(connector)] if connector else []
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*pinned, sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model",
             str(model.folder), "--served-model-name", "m", "--dtype", model.dtype,
             "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
             "--max-model-len", "4096", "--kv-cache-memory-bytes", str(1 << 29), *transfer],
            stdout=self.log, stderr=subprocess.STDOUT, env=os.environ | environment,
            start_new_session=True,
        )  # fmt: skip

    async def ready(self, session: aiohttp.ClientSession) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{self.url}/health") as response:
                    if response.status == 200:
                        return
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError(self.log.read()[-3000:].decode(errors="replace"))
            await asyncio.sleep(0.5)

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 15)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            os.killpg(self.process.pid, 9)
        self.process.wait()


Ask = Callable[[list[int], int], Coroutine[Any, Any, list[float]]]


class Peers:
    """Servers of one mode, and how a request goes through them."""

    def __init__(self, name: str, servers: list[Server], session: aiohttp.ClientSession) -> None:
        self._session = session
        self._prefill, self._decode = servers[0].url, servers[-1].url
        self.ask: Ask = {"co-located": self._alone, "relevo": self._relevo}.get(name, self._nixl)
        self._endpoint = ""

    async def prefill_only(self, prompt: list[int]) -> None:
        await self._post(self._prefill, prompt, 1, None)

    async def _alone(self, prompt: list[int], count: int) -> list[float]:
        return await self._stream(prompt, count, None)

    async def _relevo(self, prompt: list[int], count: int) -> list[float]:
        if not self._endpoint:
            ours: dict[str, Any] = {"relevo": {"handoff": 0}}
            answer = await self._post(self._prefill, [1], 1, ours)
            self._endpoint = answer["relevo"]["endpoint"]
        handoff = secrets.randbits(63)
        computing = asyncio.create_task(
            self._post(self._prefill, prompt, 1, {"relevo": {"handoff": handoff}})
        )
        ours = {"relevo": {"handoff": handoff, "prefill": [self._endpoint]}}
        times = await self._stream(prompt, count, ours)
        await computing
        return times

    async def _nixl(self, prompt: list[int], count: int) -> list[float]:
        remote = {
            "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
            "remote_block_ids": None, "remote_host": None, "remote_port": None,
        }  # fmt: skip
        begin = time.monotonic()
        answer = await self._post(self._prefill, prompt, 1, remote)
        waited = time.monotonic() - begin
        return [waited + at for at in await self._stream(prompt, count, answer)]

    def _body(self, prompt: list[int], count: int, params: dict[str, Any] | None) -> dict[str, Any]:
        body = {"model": "m", "prompt": prompt, "max_tokens": count, "temperature": 0,
                "ignore_eos": True}  # fmt: skip
        return body if params is None else body | {"kv_transfer_params": params}

    async def _post(
        self, url: str, prompt: list[int], count: int, params: dict[str, Any] | None
    ) -> dict[str, Any]:
        body = self._body(prompt, count, params)
        async with self._session.post(f"{url}/v1/completions", json=body) as response:
            answer = await response.json()
            if response.status != 200:
                raise RuntimeError(answer)
            return answer.get("kv_transfer_params") or {}

    async def _stream(
        self, prompt: list[int], count: int, params: dict[str, Any] | None
    ) -> list[float]:
        """Seconds from now to each chunk, which is a token unless the server falls behind."""
        body = self._body(prompt, count, params) | {"stream": True}
        begin = time.monotonic()
        times: list[float] = []
        async with self._session.post(f"{self._decode}/v1/completions", json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic() - begin)
        if not times:
            raise RuntimeError("no token came")
        return times


def prompt_of(tokens: int) -> list[int]:
    return [random.randrange(1000, 30000) for _ in range(tokens)]


async def measure(peers: Peers) -> dict[str, list[float]]:
    """Milliseconds."""
    found: dict[str, list[float]] = {}
    for tokens in PROMPTS:
        await peers.ask(prompt_of(tokens), 2)
        found[f"ttft_{tokens}"] = [
            1e3 * (await peers.ask(prompt_of(tokens), 2))[0] for _ in range(REPEATS)
        ]
    found["decode_step"] = []
    for _ in range(REPEATS):
        times = await peers.ask(prompt_of(64), STEPS)
        found["decode_step"] += [1e3 * (b - a) for a, b in pairwise(times[5:])]
    found["prefill_1500"] = []
    for _ in range(REPEATS):
        begin = time.monotonic()
        await peers.prefill_only(prompt_of(1500))
        found["prefill_1500"].append(1e3 * (time.monotonic() - begin))
    found["longest_gap"] = [gap for _ in range(GAP_REPEATS) for gap in await longest_gaps(peers)]
    return found


async def longest_gaps(peers: Peers) -> list[float]:
    """Of each stream that decodes while long prompts come, in ms."""
    streams = [asyncio.create_task(peers.ask(prompt_of(64), STREAM_TOKENS)) for _ in range(STREAMS)]
    await asyncio.sleep(2)
    for _ in range(LONG_PROMPTS):
        await peers.ask(prompt_of(1500), 1)
    times = [await stream for stream in streams]
    return [1e3 * max(b - a for a, b in pairwise(stream[1:])) for stream in times]


async def run(name: str, model: Model, pair: list[int]) -> dict[str, list[float]]:
    """`pair`: the cores of prefill and decode; one that is co-located has the first."""
    connector = MODES[name]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        )
        cores: list[int | None] = [*pair[:1]] if connector is None else [*pair]
        if name == "nixl as shipped":
            cores = [None, None]
        servers = []
        for core in cores:
            servers.append(Server(model, core, connector))
            stack.callback(servers[-1].stop)
        for server in servers:
            await server.ready(session)
        return await measure(Peers(name, servers, session))


def table(results: dict[str, dict[str, list[float]]]) -> str:
    keys = [*(f"ttft_{n}" for n in PROMPTS), "decode_step", "prefill_1500", "longest_gap"]
    lines = [f"{'ms, p50':18}" + "".join(f"{key:>14}" for key in keys)]
    for name, found in results.items():
        cells = "".join(f"{statistics.median(found[key]):14.1f}" for key in keys)
        lines.append(f"{name:18}{cells}")
    base = results.get("co-located")
    for name, found in results.items():
        if base is None or name == "co-located":
            continue
        added = [
            statistics.median(found[f"ttft_{n}"]) - statistics.median(base[f"ttft_{n}"])
            for n in PROMPTS
        ]
        lines.append(f"{name + ', added':18}" + "".join(f"{value:14.1f}" for value in added))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = Model(huggingface_folder(resolve_model(DEMO_MODEL)), options.dtype)
    results: dict[str, dict[str, list[float]]] = {}
    for round_ in range(options.rounds):
        # Cores are not equally fast: each serves each role in every other round.
        order, pair = (options.modes, [0, 1]) if round_ % 2 == 0 else (options.modes[::-1], [1, 0])
        for name in order:
            print(f"round {round_ + 1} of {options.rounds}: {name}", file=sys.stderr)
            for key, values in asyncio.run(run(name, model, pair)).items():
                results.setdefault(name, {}).setdefault(key, []).extend(values)
    results = {name: results[name] for name in options.modes}
    if options.json:
        print(json.dumps({"machine": describe_machine(), "ms": results}))
    else:
        print(table(results))


if __name__ == "__main__":
    main()

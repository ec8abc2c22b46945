"""Real `vllm serve` processes on one core each, SmolLM2 in float32 (`make test-vllm`)."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relevo.cli.export import huggingface_folder

MODEL = "smollm2"
START_S = 240
DEADLINE_S = 180
CONNECTOR = {
    "kv_connector": "RelevoConnector",
    "kv_connector_module_path": "relevo.worker.vllm_connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}

ENVIRONMENT = {
    "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    # What oneDNN keeps for each new shape would hide a leak.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(1800))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url, body=None, timeout=DEADLINE_S):
    """(status, answer)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Api:
    """Anything that answers /v1/completions."""

    def __init__(self, url):
        self.url = url

    def tokens(self, prompt, count=8, **options):
        body = {
            "model": MODEL, "prompt": list(prompt), "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **options,
        }  # fmt: skip
        status, answer = call(f"{self.url}/v1/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["token_ids"]

    def at_once(self, prompts, count=8, parallel=4):
        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(lambda prompt: self.tokens(prompt, count), prompts))


class Server(Api):
    """A `vllm serve` process group. `connector`: extra settings of ours, None without it."""

    def __init__(self, folder, log, core, *arguments, connector=None):
        self.port = free_port()
        super().__init__(f"http://127.0.0.1:{self.port}")
        self.log = log
        if connector is not None:
            settings = CONNECTOR | {"kv_connector_extra_config": connector}
            arguments = (*arguments, "--kv-transfer-config", json.dumps(settings))
        environment = ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": str(core)}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, "-m",
                 "vllm.entrypoints.openai.api_server", "--model", str(folder),
                 "--served-model-name", MODEL, "--dtype", "float32", "--host", "127.0.0.1",
                 "--port", str(self.port), "--enforce-eager", "--max-model-len", "4096",
                 "--kv-cache-memory-bytes", str(1 << 30),
                 *arguments],
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip

    def ready(self):
        deadline = time.monotonic() + START_S
        while True:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200:
                    return self
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.5)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait(10)

    def metric(self, name, **labels):
        """Summed over the other labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        total = 0.0
        for line in lines:
            key, _, value = line.rpartition(" ")
            if key.partition("{")[0] == name and all(
                f'{k}="{v}"' in key for k, v in labels.items()
            ):
                total += float(value)
        return total

    def events(self):
        """The connector's own counts, which come with steps."""
        time.sleep(0.6)
        self.tokens([7], 2)
        found = {}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            for line in response.read().decode().splitlines():
                if line.startswith("vllm:relevo_total"):
                    found[line.split('event="')[1].split('"')[0]] = int(float(line.split()[-1]))
        return found

    def event(self, name):
        return self.events().get(name, 0)

    def wait_idle(self, seconds=60):
        """Until vLLM itself counts no block in use and no request."""
        deadline = time.monotonic() + seconds
        names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
        while busy := {n: v for n in names if (v := self.metric(f"vllm:{n}"))}:
            assert time.monotonic() < deadline, f"never idle: {busy}"
            self.tokens([7], 1)  # gauges are written with steps
            time.sleep(0.3)

    def endpoint(self):
        body = {"model": MODEL, "prompt": [7], "max_tokens": 1, **handoff(0)}
        _, answer = call(f"{self.url}/v1/completions", body)
        return answer["kv_transfer_params"]["relevo"]["endpoint"]


def handoff(number, *prefill):
    ours = {"handoff": number, **({"prefill": prefill} if prefill else {})}
    return {"kv_transfer_params": {"relevo": ours}}


class Proxy(Api):
    def __init__(self, prefill, decode):
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "relevo"), "proxy", "--prefill",
             *(s.url for s in prefill), "--decode", *(s.url for s in decode), "--port", str(port)]
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                self.counts()
                return
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def counts(self):
        with urllib.request.urlopen(f"{self.url}/proxy/metrics", timeout=10) as response:
            lines = response.read().decode().split("\n")[:-1]
        return {line.split('"')[1]: int(line.rpartition(" ")[2]) for line in lines}

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


def random_prompt(tokens, seed):
    generator = random.Random(seed)
    return [generator.randrange(1000, 30000) for _ in range(tokens)]


@pytest.fixture(scope="session")
def folder(smollm):
    return huggingface_folder(smollm)


def answers_of_one_server(folder, logs, prompts):
    """By prompt. Of a co-located server without the connector."""
    server = Server(folder, logs / "one.log", 0)
    try:
        server.ready()
        return {tuple(p): t for p, t in zip(prompts, server.at_once(prompts), strict=True)}
    finally:
        server.stop()


@contextlib.contextmanager
def pair(folder, logs, *arguments, prefill=None, decode=None):
    """(prefill server, decode server, proxy), with our settings for either."""
    servers = [
        Server(folder, logs / f"{role}.log", core, *arguments, connector=connector or {})
        for core, (role, connector) in enumerate((("prefill", prefill), ("decode", decode)))
    ]
    proxy = None
    try:
        for server in servers:
            server.ready()
        proxy = Proxy(servers[:1], servers[1:])
        yield (*servers, proxy)
    finally:
        if proxy is not None:
            proxy.stop()
        for server in servers:
            server.stop()

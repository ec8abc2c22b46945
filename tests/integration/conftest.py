"""Real processes, real sockets, the real model."""

import http.client
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from relevo.launch.local import DeploymentConfig, LocalDeployment

EXACT = ("--dtype", "float32", "--kv-memory", "512", "--local-prefill-tokens", "0")
DEADLINE_S = 240


def open_handoffs(worker):
    """Of a worker as /health describes it: those that are not done."""
    return sum(worker["load"]["handoffs"].values())


class Api:
    """A deployment's HTTP API, plainly."""

    def __init__(self, url, model):
        self.url = url
        self.model = model

    def call(self, path, body=None):
        """(status, answer)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def tokens(self, prompt, count, **options):
        """(greedy tokens, request id)."""
        body = {
            "model": self.model, "prompt": list(prompt), "max_tokens": count, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **options,
        }  # fmt: skip
        status, answer = self.call("/v1/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["token_ids"], answer["id"]

    def tokens_at_once(self, prompts, count, parallel=8):
        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(lambda prompt: self.tokens(prompt, count)[0], prompts))

    def timeline(self, id):
        """Waits for the last words of the prefill worker."""
        for _ in range(50):
            _, timeline = self.call(f"/v1/requests/{id}/timeline")
            names = {event["name"] for event in timeline["events"]}
            if "done" in names and ("pushed" in names or "kv-landed" not in names):
                break
            time.sleep(0.05)
        return timeline

    def loads(self):
        _, health = self.call("/health")
        return {worker["worker"]: worker for worker in health["workers"]}

    def metrics(self):
        """Each summed over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=DEADLINE_S) as response:
            lines = response.read().decode().splitlines()
        totals = {}
        for line in lines:
            if not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                name = key.partition("{")[0]
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def metric(self, name):
        return self.metrics()[name]

    def held(self, count, seconds=30):
        """The held hand-offs, once there are `count`."""
        deadline = time.monotonic() + seconds
        while True:
            _, answer = self.call("/admin/handoffs")
            if len(answer["handoffs"]) == count:
                return answer["handoffs"]
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    @contextmanager
    def abandoned(self, prompt):
        """A request whose client goes away at the end of the block."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 4}
        where = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(where.hostname, where.port)
        connection.request("POST", "/v1/completions", json.dumps(body))
        try:
            yield
        finally:
            connection.close()

    def wait_idle(self, seconds=20):
        """Until every page and slot is free, or says what is not."""
        deadline = time.monotonic() + seconds
        while True:
            workers = self.loads()
            busy = {
                name: worker["load"]
                for name, worker in workers.items()
                if worker["load"]["free_pages"] != worker["pages"]
                or open_handoffs(worker)
                or any(worker["load"][k] for k in ("running", "waiting", "slots",
                                                   "quarantined_pages"))
            }  # fmt: skip
            if not busy:
                return
            assert time.monotonic() < deadline, f"never idle: {busy}"
            time.sleep(0.2)


@contextmanager
def deployed(model, *, prefill=0, decode=0, mixed=0, transport="local", arguments=(), cores=None):
    config = DeploymentConfig(
        model=model, prefill=prefill, decode=decode, mixed=mixed, transport=transport,
        worker_cores=(cores,) if cores else (), worker_arguments=tuple(arguments),
    )  # fmt: skip
    with LocalDeployment(config) as deployment:
        api = Api(deployment.url, model.name)
        api.deployment = deployment
        yield api


def random_prompt(tokens, seed):
    generator = random.Random(seed)
    return [generator.randrange(1000, 30000) for _ in range(tokens)]


@pytest.fixture(scope="session")
def split(smollm):
    """One prefill and one decode worker, bf16, as `relevo serve` starts them."""
    with deployed(smollm, prefill=1, decode=1) as api:
        yield api

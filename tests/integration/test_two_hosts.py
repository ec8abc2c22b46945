"""Two hosts, as network namespaces joined by a veth pair: router and decode worker on one, the
prefill worker on the other. The link is cut and comes back."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from .conftest import EXACT, deployed, open_handoffs, random_prompt

PROMPTS = [random_prompt(n, 500 + n) for n in (17, 64, 300, 500)]
GENERATED = 6
LONG = random_prompt(1900, 9)
CONTROL = "tcp://10.97.0.1:5570"
ASK = """
import json, sys, urllib.request
url, body = sys.argv[1], sys.stdin.buffer.read()
with urllib.request.urlopen(urllib.request.Request(url, body or None), timeout=240) as response:
    sys.stdout.write(response.read().decode())
"""

pytestmark = pytest.mark.timeout(600)


def run(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True)


class Hosts:
    """Two namespaces, 10.97.0.1 and 10.97.0.2, and what runs in them."""

    def __init__(self):
        self.names = [f"relevo-{os.getpid()}-{i}" for i in (1, 2)]
        self.processes = []
        self.links = [f"rlv{os.getpid() % 10000}{i}" for i in "ab"]

    def refusal(self):
        """Sets the hosts up; why that is not possible, or None."""
        if shutil.which("ip") is None:
            return "needs `ip` (Debian's iproute2)"
        first, second = self.names
        steps = [
            ["ip", "netns", "add", first],
            ["ip", "netns", "add", second],
            ["ip", "link", "add", self.links[0], "netns", first, "type", "veth",
             "peer", "name", self.links[1], "netns", second],
        ]  # fmt: skip
        for i, name in enumerate(self.names):
            inside = ["ip", "-n", name]
            steps += [
                [*inside, "address", "add", f"10.97.0.{i + 1}/24", "dev", self.links[i]],
                [*inside, "link", "set", self.links[i], "up"],
                [*inside, "link", "set", "lo", "up"],
            ]
        for step in steps:
            done = run(*step)
            if done.returncode:
                return f"`{' '.join(step)}` is not permitted here: {done.stderr.strip()}"
        return None

    def start(self, host, *arguments):
        command = ["ip", "netns", "exec", self.names[host], sys.executable, "-m", "relevo"]
        process = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
        self.processes.append(process)

    def link(self, state):
        assert run("ip", "-n", self.names[1], "link", "set", self.links[1], state).returncode == 0

    def call(self, path, body=None):
        done = subprocess.run(
            ["ip", "netns", "exec", self.names[0], sys.executable, "-c", ASK,
             f"http://10.97.0.1:8077{path}"],
            input="" if body is None else json.dumps(body),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else None

    def begin(self, model, prompt):
        """A request in the background: a process that prints the answer."""
        body = {
            "model": model.name, "prompt": prompt, "max_tokens": GENERATED, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[0], sys.executable, "-c", ASK,
             "http://10.97.0.1:8077/v1/completions"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.stdin.write(json.dumps(body))
        process.stdin.close()
        return process

    def end(self, process):
        answer = json.loads(process.stdout.read())
        process.wait(timeout=10)
        return answer["choices"][0]["token_ids"], answer["id"]

    def workers(self):
        health = self.call("/health")
        return {} if health is None else {w["worker"]: w for w in health["workers"]}

    def until_ready(self, *names, seconds=60):
        deadline = time.monotonic() + seconds
        while not set(names) <= set(self.workers()):
            assert time.monotonic() < deadline, f"{names} did not register: {self.workers()}"
            time.sleep(0.2)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self.names:
            run("ip", "netns", "del", name)


@pytest.fixture(scope="module")
def hosts(smollm):
    hosts = Hosts()
    try:
        refusal = hosts.refusal()
        if refusal is not None:
            pytest.skip(refusal)
        named = [str(smollm.path), "--model-name", smollm.name]
        hosts.start(0, "router", *named, "--host", "10.97.0.1", "--port", "8077", "--control",
                    CONTROL)  # fmt: skip
        for host, role in ((0, "decode"), (1, "prefill")):
            hosts.start(
                host, "worker", *named, "--role", role, "--name", role, "--router", CONTROL,
                "--host", f"10.97.0.{host + 1}", "--transport", "tcp", *EXACT,
            )  # fmt: skip
        hosts.until_ready("decode", "prefill")
        yield hosts
    finally:
        hosts.stop()


@pytest.fixture(scope="module")
def expected(smollm):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        return [api.tokens(prompt, GENERATED)[0] for prompt in [*PROMPTS, LONG]]


def handed_off(hosts, id):
    time.sleep(0.3)
    return "kv-landed" in {e["name"] for e in hosts.call(f"/v1/requests/{id}/timeline")["events"]}


def test_the_main_job_between_two_hosts(smollm, hosts, expected):
    work = [hosts.begin(smollm, prompt) for prompt in PROMPTS]
    for process, tokens in zip(work, expected, strict=False):
        got, id = hosts.end(process)
        assert got == tokens
        assert handed_off(hosts, id)


def test_a_link_that_is_slow_and_loses_packets(smollm, hosts, expected):
    inside = ["ip", "netns", "exec", hosts.names[1], "tc", "qdisc"]
    where = ["dev", hosts.links[1], "root"]
    done = run(*inside, "add", *where, "netem", "delay", "20ms", "5ms", "loss", "1%")
    if done.returncode:
        pytest.skip(f"`tc qdisc add ... netem` is not possible here: {done.stderr.strip()}")
    try:
        work = [hosts.begin(smollm, prompt) for prompt in PROMPTS]
        assert [hosts.end(process)[0] for process in work] == expected[: len(PROMPTS)]
    finally:
        run(*inside, "delete", *where)


def test_the_link_cut_in_mid_transfer_and_back(smollm, hosts, expected):
    work = hosts.begin(smollm, LONG)
    deadline = time.monotonic() + 30
    while not open_handoffs(hosts.workers()["prefill"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    hosts.link("down")
    try:
        got, id = hosts.end(work)
        assert got == expected[-1], "computed by the decode worker itself"
        assert not handed_off(hosts, id)
    finally:
        hosts.link("up")
    hosts.until_ready("decode", "prefill")
    deadline = time.monotonic() + 60
    for seed in range(1000):
        _, id = hosts.end(hosts.begin(smollm, random_prompt(40, 7000 + seed)))
        if handed_off(hosts, id):
            break
        assert time.monotonic() < deadline, "no hand-off after the link came back"
    deadline = time.monotonic() + 30
    while True:
        workers = hosts.workers()
        if all(w["load"]["free_pages"] == w["pages"] and not w["load"]["slots"]
               for w in workers.values()):  # fmt: skip
            break
        assert time.monotonic() < deadline, workers
        time.sleep(0.5)

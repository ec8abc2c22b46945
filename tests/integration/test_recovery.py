"""Workers and routers that die, are stopped, or are restarted: every accepted request is answered
correctly, and everything is freed."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevo.launch.process import Process

from .conftest import EXACT, Api, deployed, open_handoffs, random_prompt

PROMPTS = [random_prompt(n, 300 + n) for n in (40, 400, 500, 600)]
GENERATED = 64  # longer than a heartbeat, so that the router hears of requests that run
TRANSPORTS = ["local", "tcp"]
# `make test` takes these over one transport, `make test-slow` over the other.
MOSTLY_LOCAL = ["local", pytest.param("tcp", marks=pytest.mark.slow)]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def expected(smollm):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        return api.tokens_at_once(PROMPTS, GENERATED)


class UnderWay:
    """All prompts at once, in the background."""

    def __init__(self, api):
        self._pool = ThreadPoolExecutor(len(PROMPTS))
        self._futures = [self._pool.submit(api.tokens, prompt, GENERATED) for prompt in PROMPTS]

    def tokens(self):
        return [future.result(timeout=200)[0] for future in self._futures]


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def process(api, name):
    return next(p for p in api.deployment.processes if p.name == name)


def restart(api, name):
    old = process(api, name)
    api.deployment.processes.append(Process(name, old.arguments))
    api.deployment.processes.remove(old)


def resubmitted(api):
    return api.metric("relevo_resubmitted_total")


def transferring(api):
    return any(open_handoffs(w) for w in api.loads().values() if w["role"] == "prefill")


def registered(api, *names):
    return lambda: set(names) <= set(api.loads())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("moment", ["mid-transfer", "mid-decode"])
def test_a_lost_decode_worker_s_requests_go_on_at_another(smollm, expected, transport, moment):
    with deployed(smollm, prefill=1, decode=2, transport=transport, arguments=EXACT) as api:
        work = UnderWay(api)
        until(lambda: transferring(api))
        if moment == "mid-decode":
            until(lambda: api.loads()["decode-0"]["load"]["running"])
        os.kill(process(api, "decode-0").pid, signal.SIGKILL)
        assert work.tokens() == expected
        until(lambda: "decode-0" not in api.loads())
        assert resubmitted(api) > 0
        api.wait_idle()


@pytest.mark.parametrize("transport", MOSTLY_LOCAL)
def test_a_restarted_decode_worker_takes_its_requests_up_again(smollm, expected, transport):
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=EXACT) as api:
        work = UnderWay(api)
        until(lambda: transferring(api))
        os.kill(process(api, "decode-0").pid, signal.SIGKILL)
        restart(api, "decode-0")
        assert work.tokens() == expected
        assert resubmitted(api) > 0
        api.wait_idle()


@pytest.mark.parametrize("transport", MOSTLY_LOCAL)
def test_a_restarted_prefill_worker_is_used_again(smollm, expected, transport):
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=EXACT) as api:
        work = UnderWay(api)
        until(lambda: transferring(api))
        os.kill(process(api, "prefill-0").pid, signal.SIGKILL)
        restart(api, "prefill-0")
        assert work.tokens() == expected, "computed by the decode worker in the meantime"
        until(registered(api, "prefill-0"))

        def handed_off():
            tokens, id = api.tokens(random_prompt(64, time.monotonic_ns()), 1)
            names = {e["name"] for e in api.timeline(id)["events"]}
            return len(tokens) == 1 and "kv-landed" in names

        until(handed_off)
        api.wait_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stopped_prefill_worker_is_fenced_and_changes_nothing_when_it_goes_on(
    smollm, expected, transport
):
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=EXACT) as api:
        work = UnderWay(api)
        until(lambda: transferring(api))
        stopped = process(api, "prefill-0").pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            assert work.tokens() == expected
            until(lambda: "prefill-0" not in api.loads())
            beside = UnderWay(api)  # on pages that the stopped worker was to write
            time.sleep(0.5)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert beside.tokens() == expected
        until(registered(api, "prefill-0"))
        assert UnderWay(api).tokens() == expected
        api.wait_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("decode", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_decode_worker_stopped_for_twenty_seconds(smollm, expected, transport, decode):
    """Alone, it takes its own requests up again."""
    with deployed(smollm, prefill=1, decode=decode, transport=transport, arguments=EXACT) as api:
        work = UnderWay(api)
        until(lambda: transferring(api))
        stopped = process(api, "decode-0").pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            time.sleep(20)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert work.tokens() == expected
        assert resubmitted(api) > 0
        until(registered(api, "decode-0"))
        assert UnderWay(api).tokens() == expected
        api.wait_idle()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_a_restarted_router_takes_its_workers_back(smollm, expected):
    """Started one by one, as on several machines."""
    http, control = free_port(), f"tcp://127.0.0.1:{free_port()}"
    router = ["router", str(smollm.path), "--port", str(http), "--control", control]
    router += ["--model-name", smollm.name]

    def worker(role):
        arguments = ["worker", str(smollm.path), "--role", role, "--name", f"{role}-0"]
        return [*arguments, "--router", control, "--model-name", smollm.name, *EXACT]

    api = Api(f"http://127.0.0.1:{http}", smollm.name)
    processes = [Process("router", router)]
    processes += [Process(role, worker(role)) for role in ("prefill", "decode")]

    def up():
        try:
            return {"prefill-0", "decode-0"} <= set(api.loads())
        except OSError:
            return False

    try:
        until(up, 60)
        pids = {name: w["pid"] for name, w in api.loads().items()}
        work = [*PROMPTS, *PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            lost = [pool.submit(api.call, "/v1/completions", body(api, p)) for p in work]
            until(lambda: transferring(api))
            os.kill(processes[0].pid, signal.SIGKILL)
            processes[0].wait(time.monotonic() + 5)
            processes[0] = Process("router", router)
            until(up, 30)
            begin = time.monotonic()
            assert api.tokens(PROMPTS[0], GENERATED)[0] == expected[0]
            assert time.monotonic() - begin < 20, "new requests are served at once"
            for future in lost:
                assert future.exception(timeout=60) is not None, "its connection was cut"
        assert {name: w["pid"] for name, w in api.loads().items()} == pids
        assert UnderWay(api).tokens() == expected
        api.wait_idle()
    finally:
        for one in processes:
            one.terminate()
        for one in processes:
            one.wait(time.monotonic() + 5)


def body(api, prompt):
    return {"model": api.model, "prompt": prompt, "max_tokens": 200, "ignore_eos": True}

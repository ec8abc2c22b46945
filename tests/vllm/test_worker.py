"""`relevo serve --engine vllm`: vLLM inside workers of ours, behind our router."""

import os
import signal
import threading
import time

import psutil
import pytest

from tests.integration.conftest import deployed

from .conftest import ENVIRONMENT, answers_of_one_server, random_prompt

LENGTHS = [
    1,
    2,
    17,
    33,
    34,
    64,
    127,
    128,
    129,
    130,
    200,
    256,
    257,
    400,
    600,
    800,
    1100,
    1500,
    1800,
    2000,
]
PROMPTS = [random_prompt(n, 40 + n) for n in LENGTHS]
LONG = [random_prompt(1500, 8 + i) for i in range(4)]
ARGUMENTS = (
    "--engine", "vllm", "--dtype", "float32", "--kv-memory", "512",
    "--vllm-arguments=--enforce-eager --max-model-len 4096 --max-num-batched-tokens 256",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for key, value in ENVIRONMENT.items():
            patch.setenv(key, value)
        yield


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    return answers_of_one_server(folder, logs, [*PROMPTS, *LONG])


@pytest.fixture(scope="module")
def api(smollm, expected):
    with deployed(smollm, prefill=1, decode=1, arguments=ARGUMENTS) as api:
        yield api


def idle(api, seconds=30):
    """Nothing runs, and every block is free but for rounding."""
    deadline = time.monotonic() + seconds
    while True:
        loads = {n: (w["load"], w["pages"]) for n, w in api.loads().items()}
        if all(
            load["running"] == load["waiting"] == 0 and load["free_pages"] >= pages - 1
            for load, pages in loads.values()
        ):
            return
        assert time.monotonic() < deadline, loads
        time.sleep(0.3)


def test_twenty_prompts_are_answered_as_by_one_server(api, expected):
    for prompt in PROMPTS:
        assert api.tokens(prompt, 8)[0] == expected[tuple(prompt)], f"{len(prompt)} tokens"
    assert api.tokens_at_once(PROMPTS, 8, parallel=4) == [expected[tuple(p)] for p in PROMPTS]
    time.sleep(1.5)
    landed = api.metric("relevo_worker_handoff_landed_total")
    assert landed >= sum(n > 33 for n in LENGTHS), "each prompt of more than 32 uncached tokens"
    idle(api)


def test_layers_are_pushed_while_later_ones_compute(api):
    _, id = api.tokens(random_prompt(1500, 99), 4)
    timeline = api.timeline(id)
    events = {event["name"]: event for event in timeline["events"]}
    pushed = events["pushed"]["layers_ms"]
    assert pushed == sorted(pushed)
    assert pushed[0] < events["prefill-end"]["at_ms"]
    whole = events["kv-landed"]["at_ms"] - pushed[0]
    assert timeline["figures"]["exposed_transfer_ms"] <= 0.2 * whole


def test_a_killed_prefill_worker_leaves_no_process_and_costs_no_answer(smollm, expected):
    """Last: a deployment of its own."""
    with deployed(smollm, prefill=1, decode=1, arguments=ARGUMENTS) as api:
        api.tokens(random_prompt(40, 1), 1)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(api.tokens(LONG[0], 8)[0]))
        thread.start()
        time.sleep(1)
        pid = api.loads()["prefill-0"]["pid"]
        children = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        thread.join(90)
        assert answers == [expected[tuple(LONG[0])]]
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
        assert api.tokens(LONG[1], 8)[0] == expected[tuple(LONG[1])], "the decode worker alone"

"""Kinds of fault that users of such systems report again and again, where no other test has them
(see docs/failure-model.md)."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import deployed, random_prompt


@pytest.fixture(scope="module")
def api(smollm):
    arguments = ("--local-prefill-tokens", "0")
    with deployed(smollm, prefill=1, decode=1, arguments=arguments) as api:
        yield api


def names(timeline):
    return [event["name"] for event in timeline["events"]]


def test_each_of_several_choices_is_handed_off(api):
    """One request becomes several; none may lose its hand-off."""
    body = {
        "model": api.model, "prompt": random_prompt(60, 1), "n": 4, "max_tokens": 3,
        "temperature": 0, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    status, answer = api.call("/v1/completions", body)
    assert status == 200
    choices = [choice["token_ids"] for choice in answer["choices"]]
    assert len(choices) == 4
    assert all(tokens == choices[0] for tokens in choices)
    for id in (answer["id"], *(f"{answer['id']}-{i}" for i in (1, 2, 3))):
        assert "kv-landed" in names(api.timeline(id))
    api.wait_idle()


def test_a_long_prompt_travels_in_few_writes_and_while_it_is_computed(api):
    _, id = api.tokens(random_prompt(600, 2), 1)
    timeline = api.timeline(id)
    layers = 30
    assert timeline["figures"]["parts"] == layers * 38
    assert timeline["figures"]["writes"] <= 2 * layers, "pages that follow each other are joined"
    events = {event["name"]: event for event in timeline["events"]}
    pushed_at = events["pushed"]["layers_ms"]
    assert pushed_at == sorted(pushed_at)
    assert pushed_at[0] < events["prefill-end"]["at_ms"]


def test_demand_is_counted_where_it_arrives(api):
    """Not by what comes out, which is the same for any overload."""
    before = api.metric("relevo_requests_total")
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(api.tokens, random_prompt(700, 10 + i), 1) for i in range(8)]
        deadline = time.monotonic() + 30
        while api.metric("relevo_requests_total") < before + 8:
            assert time.monotonic() < deadline
        assert api.metric("relevo_queued") > 0, "beyond the prefill worker's credit"
        for future in work:
            future.result(timeout=120)
    assert api.metric("relevo_queued") == 0
    api.wait_idle()


def test_disaggregation_is_not_switched_off_in_silence(api):
    """Last: it takes the prefill worker away."""
    assert api.metric("relevo_not_disaggregated_total") == 0
    worker = next(p for p in api.deployment.processes if p.name == "prefill-0")
    os.kill(worker.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while "prefill-0" in api.loads():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    _, id = api.tokens(random_prompt(50, 3), 2)
    assert "local-prefill" in names(api.timeline(id))
    assert api.metric("relevo_not_disaggregated_total") == 1

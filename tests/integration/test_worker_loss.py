"""A worker that dies gives a clean error, or none at all, and frees everything."""

import os
import signal
import threading
import time

import pytest

from .conftest import EXACT, deployed, open_handoffs, random_prompt

PROMPT = random_prompt(1000, 77)


@pytest.fixture(scope="module")
def expected(smollm):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        return api.tokens(PROMPT, 4)[0]


def running(api, prompt, tokens):
    """(thread, its result list) of a request under way."""
    body = {"model": api.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    result = []
    thread = threading.Thread(target=lambda: result.append(api.call("/v1/completions", body)))
    thread.start()
    return thread, result


def until_transferring(api):
    """The prefill worker is in mid-prompt, with part of it written."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any(open_handoffs(w) for w in api.loads().values() if w["role"] == "prefill"):
            return
        time.sleep(0.01)
    raise AssertionError("no hand-off began")


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_prefill_worker_killed_in_mid_transfer_costs_no_answer(smollm, expected, transport):
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=EXACT) as api:
        api.tokens(random_prompt(40, 1), 1)  # the link is up
        thread, result = running(api, PROMPT, 4)
        until_transferring(api)
        os.kill(api.loads()["prefill-0"]["pid"], signal.SIGKILL)
        thread.join(60)
        ((status, answer),) = result
        assert status == 200, answer
        assert answer["choices"][0]["token_ids"] == expected
        names = [e["name"] for e in api.timeline(answer["id"])["events"]]
        assert "handoff-lost" in names
        decode = lambda: api.loads()["decode-0"]  # noqa: E731
        deadline = time.monotonic() + 20
        while decode()["load"]["free_pages"] != decode()["pages"]:
            assert time.monotonic() < deadline, decode()
            time.sleep(0.2)


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_the_only_decode_worker_killed_is_a_clean_error_in_the_end(smollm, transport):
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=EXACT) as api:
        api.tokens(random_prompt(40, 1), 1)
        thread, result = running(api, PROMPT, 4)
        until_transferring(api)
        os.kill(api.loads()["decode-0"]["pid"], signal.SIGKILL)
        thread.join(90)  # it waits for a replacement first
        ((status, answer),) = result
        assert status == 500
        assert answer["error"]["code"] == "WorkerLost"
        assert "no worker that generates is left" in answer["error"]["message"]
        deadline = time.monotonic() + 20
        while True:
            _, health = api.call("/health")
            load = next(w for w in health["workers"] if w["role"] == "prefill")
            if load["load"]["free_pages"] == load["pages"] and not open_handoffs(load):
                break
            assert time.monotonic() < deadline, load
            time.sleep(0.2)

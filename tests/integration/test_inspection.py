"""`--verify-kv`, `--hold-handoffs`, and messages that get lost, with real processes."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from relevo.engine.engine import Engine, EngineConfig
from relevo.engine.sequence import Sequence

from .conftest import EXACT, deployed, random_prompt

PROMPTS = [random_prompt(n, 700 + n) for n in (33, 64, 100, 150, 210)]
GENERATED = 8
TRANSPORTS = ["local", "tcp"]


@pytest.fixture(scope="module")
def expected(smollm):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        return [api.tokens(prompt, GENERATED)[0] for prompt in PROMPTS]


def counter(api, name):
    """Once the workers have reported."""
    time.sleep(1.5)
    return api.metric(f"relevo_worker_{name}_total")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_arrives_wrong_is_prefilled_again(smollm, expected, transport):
    """Seen to answer with wrong tokens without --verify-kv."""
    arguments = (*EXACT, "--verify-kv", "--faults", "seed=3,corrupt=0.02")
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        answers = [api.tokens(prompt, GENERATED) for prompt in PROMPTS]
        assert [tokens for tokens, _ in answers] == expected
        reasons = [
            event["reason"]
            for _, id in answers
            for event in api.timeline(id)["events"]
            if event["name"] == "handoff-lost"
        ]
        assert counter(api, "handoff_mismatched") == len(reasons) > 0
        for reason in reasons:
            assert "prefill-0" in reason
            assert "decode-0" in reason
            assert "layers [" in reason
        api.wait_idle()


def test_what_arrives_right_is_verified_and_goes_on(smollm, expected):
    with deployed(smollm, prefill=1, decode=1, arguments=(*EXACT, "--verify-kv")) as api:
        assert [api.tokens(prompt, GENERATED)[0] for prompt in PROMPTS] == expected
        assert counter(api, "handoff_verified") == len(PROMPTS)
        assert counter(api, "handoff_mismatched") == counter(api, "handoff_unverified") == 0
        api.wait_idle()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_that_are_lost_late_or_repeated_hurt_no_request(smollm, expected, transport):
    arguments = (*EXACT, "--verify-kv", "--faults", "seed=5,lose=0.15,repeat=0.3,late=0.3")
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        for _ in range(3):
            assert api.tokens_at_once(PROMPTS, GENERATED) == expected
        for name in ("messages_lost", "messages_repeated", "messages_late"):
            assert counter(api, name) > 0, name
        api.wait_idle(60)


def own_checksums(smollm, prompt):
    """By an engine of our own, page by page."""
    config = EngineConfig(
        model=smollm.path, cache=smollm.cache, dtype="float32", pool_bytes=64 << 20
    )
    memory = {}

    def allocate(name, size):
        memory["pool"] = np.zeros(size, dtype=np.uint8)
        return memory["pool"]

    engine = Engine(config, allocate)
    sequence = Sequence("s", prompt[:-1], None)
    engine.scheduler.add(sequence)
    engine.scheduler.admit()
    engine.run(engine.scheduler.schedule())
    pool = memory["pool"].reshape(engine.layout.layer_count, engine.layout.pages, -1)
    return [xxhash.xxh3_64(layer[sequence.pages].tobytes()).hexdigest() for layer in pool]


def relevo(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "relevo", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_held_handoff_is_listed_and_goes_on_when_it_is_released(smollm, expected):
    arguments = (*EXACT, "--hold-handoffs")
    with (
        deployed(smollm, prefill=1, decode=1, arguments=arguments) as api,
        ThreadPoolExecutor(1) as background,
    ):
        assert "no hand-off is held" in relevo("handoffs", "--url", api.url).stdout
        answer = background.submit(api.tokens, PROMPTS[2], GENERATED)
        (held,) = api.held(1)
        assert not answer.done()
        assert held["prompt_tokens"] == 100
        assert len(held["pages"]) == 7
        assert (held["prefill"], held["decode"]) == ("prefill-0", "decode-0")
        own = own_checksums(smollm, PROMPTS[2])
        assert held["checksums"] == {"sent": own, "arrived": own}

        listed = relevo("handoffs", "--url", api.url)
        assert held["id"] in listed.stdout
        assert own[0] in listed.stdout
        unknown = relevo("release", "abc", "--url", api.url)
        assert (unknown.returncode, "'abc'" in unknown.stderr) == (2, True)
        assert relevo("release", "not-hex", "--url", api.url).returncode == 2
        assert not answer.done()

        assert relevo("release", held["id"], "--url", api.url).returncode == 0
        tokens, id = answer.result(timeout=60)
        assert tokens == expected[2]
        names = [event["name"] for event in api.timeline(id)["events"]]
        assert names.index("held") < names.index("released") < names.index("first-step")
        assert api.held(0) == []
        api.wait_idle()


def test_a_held_handoff_ends_with_its_client(smollm):
    arguments = (*EXACT, "--hold-handoffs")
    with deployed(smollm, prefill=1, decode=1, arguments=arguments) as api:
        with api.abandoned(PROMPTS[0]):
            api.held(1)
        assert api.held(0) == []
        api.wait_idle()


def test_the_commands_say_when_nobody_answers():
    result = relevo("handoffs", "--url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "no Relevo router answers" in result.stderr

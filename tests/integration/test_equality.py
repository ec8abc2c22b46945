"""Greedy output of the disaggregated system equals co-located output, token for token."""

import threading
import time

import numpy as np
import pytest

from relevo.engine.engine import Engine, EngineConfig
from relevo.engine.scheduler import Chunk, Step
from relevo.engine.sequence import Sequence
from relevo.types import Sampling

from .conftest import EXACT, deployed, random_prompt

PAGE = 16
# Prompts whose N-1 or N tokens are at, one below or one above a page's boundary; short; long.
LENGTHS = [
    1, 2, 3, PAGE - 1, PAGE, PAGE + 1, PAGE + 2, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1,
    2 * PAGE + 2, 47, 48, 49, 50, 63, 64, 65, 66, 100, 127, 128, 129, 130, 255, 257, 300, 401,
    513, 2000,
]  # fmt: skip
PROMPTS = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
SHORTER = PROMPTS[:-1]  # for bf16, which many CPUs compute slowly
GENERATED = 8
# In bf16 a batch's composition changes sums in the last bits. A first divergence counts as a
# near-tie when the two best logits (of about 20) differ by less than this, by float32.
NEAR_TIE = 0.25


@pytest.fixture(scope="module")
def expected(smollm):
    with deployed(smollm, mixed=1, arguments=EXACT) as api:
        return api.tokens_at_once(PROMPTS, GENERATED)


def test_there_are_thirty_prompts():
    assert len(PROMPTS) == 30


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "step_tokens"),
    [
        pytest.param("local", 4096, id="local-whole"),
        pytest.param("tcp", 96, id="tcp-chunked"),
        pytest.param("local", 96, id="local-chunked", marks=pytest.mark.slow),
        pytest.param("tcp", 4096, id="tcp-whole", marks=pytest.mark.slow),
    ],
)
def test_float32_is_exact_with_eight_at_once(smollm, expected, transport, step_tokens):
    arguments = (*EXACT, "--step-tokens", str(step_tokens))
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        assert api.tokens_at_once(PROMPTS, GENERATED) == expected
        again = PROMPTS[::-3]
        assert api.tokens_at_once(again, GENERATED) == expected[::-3], "with both caches warm"
        api.wait_idle()
        workers = api.loads()
        assert workers["decode-0"]["load"]["free_pages"] == workers["decode-0"]["pages"]


@pytest.mark.timeout(600)
def test_a_prefix_cached_at_either_side_alone(smollm, expected):
    """Two workers of each role: a long request keeps the first of a role busy, so that the next
    one goes to the second, whose cache is cold."""
    index = LENGTHS.index(130)
    prompt, answer = PROMPTS[index], expected[index]
    with deployed(smollm, prefill=2, decode=2, arguments=EXACT) as api:

        def reused():
            tokens, id = api.tokens(prompt, GENERATED)
            assert tokens == answer
            timeline = api.timeline(id)
            figures, workers = timeline["figures"], timeline["workers"]
            return figures["pages_reused_by_prefill"], figures["pages_reused_by_decode"], workers

        assert reused() == (0, 0, {"prefill": "prefill-0", "decode": "decode-0"})
        with busy(api, prompt_tokens=1, generated=400):  # decode-0 only
            assert reused() == (8, 0, {"prefill": "prefill-0", "decode": "decode-1"})
        with busy(api, prompt_tokens=1500, generated=1):  # prefill-0, and decode-0
            at_prefill, at_decode, workers = reused()
            assert workers == {"prefill": "prefill-1", "decode": "decode-1"}
            assert (at_prefill, at_decode) == (0, 8)
        assert reused()[:2] == (8, 8)


class busy:
    """A request that runs beside the block."""

    def __init__(self, api, *, prompt_tokens, generated):
        prompt = random_prompt(prompt_tokens, seed=prompt_tokens)
        self._thread = threading.Thread(target=api.tokens, args=(prompt, generated))

    def __enter__(self):
        self._thread.start()
        # It is dispatched within milliseconds and runs for seconds. Its worker's load would not
        # tell: a prompt is one step, and a heartbeat comes between steps.
        time.sleep(0.5)

    def __exit__(self, *error):
        self._thread.join()


@pytest.fixture(scope="module")
def bf16_alone(smollm):
    with deployed(smollm, mixed=1, cores=(0,), arguments=("--local-prefill-tokens", "0")) as api:
        return api.tokens_at_once(SHORTER, GENERATED, parallel=1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_bf16_is_exact_one_at_a_time(smollm, bf16_alone, transport):
    arguments = ("--local-prefill-tokens", "0")
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        assert api.tokens_at_once(SHORTER, GENERATED, parallel=1) == bf16_alone


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_bf16_is_exact_for_the_longest_prompt_too(smollm, transport):
    arguments = ("--local-prefill-tokens", "0")
    with deployed(smollm, mixed=1, cores=(0,), arguments=arguments) as api:
        alone = api.tokens(PROMPTS[-1], GENERATED)[0]
    with deployed(smollm, prefill=1, decode=1, transport=transport, arguments=arguments) as api:
        assert api.tokens(PROMPTS[-1], GENERATED)[0] == alone


@pytest.mark.timeout(600)
def test_bf16_is_near_tied_in_batches(smollm, bf16_alone):
    arguments = ("--local-prefill-tokens", "0")
    with deployed(smollm, prefill=1, decode=1, transport="local", arguments=arguments) as api:
        batched = api.tokens_at_once(SHORTER, GENERATED)
    gaps = [
        logit_gap(smollm, prompt + alone[:first])
        for prompt, alone, other in zip(SHORTER, bf16_alone, batched, strict=True)
        if (first := first_difference(alone, other)) is not None
    ]
    assert all(gap < NEAR_TIE for gap in gaps), gaps


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


_engine = []


def logit_gap(model, tokens):
    """Between the two best next tokens, in float32."""
    if not _engine:
        config = EngineConfig(model.path, model.cache, dtype="float32", pool_bytes=256 << 20)
        _engine.append(Engine(config, lambda name, size: np.zeros(size, dtype=np.uint8)))
    (engine,) = _engine
    sequence = Sequence("gap", list(tokens), Sampling(1))
    sequence.pages = engine.pool.allocate(len(tokens) // PAGE + 1)
    if len(tokens) > 1:
        engine.runner.logits(Step((), (Chunk(sequence, 0, len(tokens) - 1),)))
    best, second = engine.runner.logits(Step((sequence,), ()))[0].topk(2).values.tolist()
    engine.pool.release(sequence.pages)
    return best - second

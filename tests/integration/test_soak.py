"""Hand-offs of random length by the thousand, under faults of writes and messages, a part of them
cancelled at random moments: no wrong token, no leak.

A small model of random weights, whose steps take a millisecond, makes 10,000 on each transport a
matter of minutes; the demo's model makes a tenth of that. SOAK_HANDOFFS sets how many."""

import asyncio
import os
import random
import time

import aiohttp
import psutil
import pytest
import tokenizers
import torch
import transformers

from relevo.launch.model_source import resolve_model

from .conftest import deployed, random_prompt

HANDOFFS = int(os.environ.get("SOAK_HANDOFFS", "10000"))
CANCELLED = 0.15
PARALLEL = 8
GENERATED = 3
FAULTS = (
    "seed=11,delay=3000,error=0.0005,stall=0.0005,cut=0.00002,lose=0.001,repeat=0.01,late=0.005"
)
SETTINGS = ("--dtype", "float32", "--local-prefill-tokens", "0")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * 3600)]


def prompts(count, tokens, vocabulary):
    generator = random.Random(count)
    lengths = [generator.randint(1, tokens) for _ in range(count)]
    return [
        [token % vocabulary for token in random_prompt(length, 900 + i)]
        for i, length in enumerate(lengths)
    ]


class RandomModel:
    """A Llama of 6 layers. Weights are large, so that what it says hangs on all of the prompt."""

    vocabulary, pool_mib, prompt_tokens, handoffs = 2048, 8, 300, HANDOFFS

    def __init__(self, folder):
        config = transformers.LlamaConfig(
            vocab_size=self.vocabulary, hidden_size=192, intermediate_size=384,
            num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2,
            max_position_embeddings=1024, tie_word_embeddings=False, initializer_range=0.2,
        )  # fmt: skip
        torch.manual_seed(5)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        words = {f"w{i}": i for i in range(self.vocabulary)}
        model = tokenizers.models.WordLevel(words, unk_token="w0")
        tokenizers.Tokenizer(model).save(str(folder / "tokenizer.json"))
        self.source = resolve_model(str(folder))


class DemoModel:
    vocabulary, pool_mib, prompt_tokens, handoffs = 30000, 64, 90, HANDOFFS // 10

    def __init__(self, source):
        self.source = source


@pytest.fixture(scope="module", params=["random weights", "SmolLM2"])
def soaked(request, smollm, tmp_path_factory, monkeypatch_module):
    if request.param == "SmolLM2":
        return DemoModel(smollm)
    monkeypatch_module.setenv("RELEVO_CACHE", str(tmp_path_factory.mktemp("cache")))
    return RandomModel(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


async def one(session, api, generator, work):
    prompt, expected = generator.choice(work)
    body = {
        "model": api.model, "prompt": prompt, "max_tokens": GENERATED, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip

    async def ask():
        begin = time.monotonic()
        async with session.post(f"{api.url}/v1/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["choices"][0]["token_ids"] == expected
        return time.monotonic() - begin

    if generator.random() >= CANCELLED:
        api.took = 0.9 * api.took + 0.1 * await ask()
        return
    try:  # anywhere in the life of a request
        await asyncio.wait_for(ask(), generator.uniform(0, 1.2 * api.took))
    except TimeoutError:
        return


async def run(api, work, count):
    generator = random.Random(count)
    gate = asyncio.Semaphore(PARALLEL)
    api.took = 0.1
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def guarded():
            async with gate:
                await one(session, api, generator, work)

        await asyncio.gather(*(guarded() for _ in range(count)))


def resources(api):
    """(descriptors, private MiB) of each process."""
    found = {}
    for process in api.deployment.processes:
        inside = psutil.Process(process.pid)
        found[process.name] = (inside.num_fds(), inside.memory_full_info().uss >> 20)
    return found


def expected_answers(soaked, arguments):
    """[(prompt, tokens)], and a look whether the tokens depend on what comes first."""
    asked = prompts(300, soaked.prompt_tokens, soaked.vocabulary)
    with deployed(soaked.source, mixed=1, arguments=arguments) as api:
        answers = api.tokens_at_once(asked, GENERATED)
        altered = [[7, *prompt[1:]] for prompt in asked]
        changed = sum(
            a != b for a, b in zip(answers, api.tokens_at_once(altered, GENERATED), strict=True)
        )
    assert changed > len(asked) / 2, "a page that is wrong would not be noticed"
    return list(zip(asked, answers, strict=True))


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_handoffs_by_the_thousand_under_faults(soaked, transport):
    arguments = (*SETTINGS, "--kv-memory", str(soaked.pool_mib))
    work = expected_answers(soaked, arguments)
    arguments = (*arguments, "--faults", FAULTS)
    with deployed(
        soaked.source, prefill=1, decode=1, transport=transport, arguments=arguments
    ) as api:
        asyncio.run(run(api, work, soaked.handoffs // 5))
        api.wait_idle(60)
        before = resources(api)
        begin = time.monotonic()
        while api.metric("relevo_worker_handoff_landed_total") < soaked.handoffs:
            asyncio.run(run(api, work, soaked.handoffs // 4))
            time.sleep(1.5)  # workers report with their heartbeats
        took = time.monotonic() - begin
        api.wait_idle(60)
        after = resources(api)
        seen = api.metrics()
    shown = {k: int(v) for k, v in seen.items() if "_handoff_" in k and v}
    print(f"\n{transport}: {took:.0f} s; {shown}; before {before}, after {after}")
    wanted = ["handoff_lost", "handoff_cancelled", "transfer_errors", "messages_repeated"]
    for name in wanted:
        assert seen[f"relevo_worker_{name}_total"] > 0, f"{name}: the faults did nothing"
    for name, (descriptors, memory) in before.items():
        assert after[name][0] <= descriptors + 8, (before, after)
        assert after[name][1] <= memory + 60, (before, after)

"""Greedy answers of a disaggregated pair are those of one co-located vLLM, token for token."""

import pytest

from .conftest import MODEL, answers_of_one_server, call, pair, random_prompt

LENGTHS = [
    1,
    2,
    3,
    17,
    32,
    64,
    127,
    128,
    129,
    130,
    200,
    255,
    256,
    257,
    400,
    600,
    800,
    1100,
    1500,
    2000,
]
PROMPTS = [random_prompt(n, 40 + n) for n in LENGTHS]
SHARED = random_prompt(700, 5)
GENERATED = 8


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    return answers_of_one_server(
        folder, logs, [*PROMPTS, *(SHARED + random_prompt(n, n) for n in (90, 91, 92, 93))]
    )


@pytest.fixture(
    scope="module", params=[(), ("--max-num-batched-tokens", "256")], ids=["whole", "chunked"]
)
def split(request, folder, tmp_path_factory):
    with pair(folder, tmp_path_factory.mktemp("logs"), *request.param) as split:
        yield split


def test_prompts_of_every_length_one_by_one_and_at_once(split, expected):
    prefill, decode, proxy = split
    for prompt in PROMPTS:
        assert proxy.tokens(prompt) == expected[tuple(prompt)], f"{len(prompt)} tokens"
    landed = decode.event("handoff_landed")
    assert landed == len(PROMPTS) - 1, "all but the prompt of one token"
    assert proxy.at_once(PROMPTS) == [expected[tuple(p)] for p in PROMPTS]
    assert proxy.counts()["decode_only"] == 0
    prefill.wait_idle()
    decode.wait_idle()


@pytest.mark.parametrize("cached_at", ["prefill", "decode", "both"])
def test_prefixes_that_one_side_has_already(split, expected, cached_at):
    prefill, decode, proxy = split
    own = {"prefill": 90, "decode": 91, "both": 92}[cached_at]
    prompt = SHARED + random_prompt(own, own)
    for server, name in ((prefill, "prefill"), (decode, "decode")):
        if cached_at in (name, "both"):
            server.tokens(SHARED, 1)
    before = decode.event("handoff_landed"), prefill.event("transfer_parts")
    assert proxy.tokens(prompt) == expected[tuple(prompt)]
    after = decode.event("handoff_landed"), prefill.event("transfer_parts")
    assert after[0] == before[0] + 1
    whole, missing = -(-(len(prompt) - 1) // 128), -(-(len(prompt) - 1) // 128) - 700 // 128
    assert after[1] - before[1] == 30 * (whole if cached_at == "prefill" else missing)


def test_several_choices_of_one_prompt(split, expected):
    _, decode, proxy = split
    prompt = SHARED + random_prompt(93, 93)
    body = {
        "model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 1, "top_k": 1, "n": 3,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    status, answer = call(f"{proxy.url}/v1/completions", body)
    assert status == 200, answer
    assert [c["token_ids"] for c in answer["choices"]] == [expected[tuple(prompt)]] * 3
    decode.wait_idle()

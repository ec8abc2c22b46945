"""Bad input gets a clear error and harms nothing: after each, the next good request succeeds."""

import pytest

GOOD = {"prompt": "Hello", "max_tokens": 2, "temperature": 0}

CASES = {
    "malformed JSON": ("/v1/completions", b'{"model": ', 400, "not valid JSON"),
    "no object": ("/v1/completions", b"[1, 2]", 400, "object"),
    "wrong type": ("/v1/completions", {"max_tokens": "many"}, 400, "max_tokens"),
    "no prompt": ("/v1/completions", {"prompt": None}, 400, "prompt"),
    "no messages": ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    "messages missing": ("/v1/chat/completions", {}, 400, "messages"),
    "unknown model": ("/v1/completions", {"model": "other"}, 404, "'other'"),
    "empty prompt": ("/v1/completions", {"prompt": ""}, 400, "empty"),
    "empty list": ("/v1/completions", {"prompt": []}, 400, "empty"),
    "no tokens to make": ("/v1/completions", {"max_tokens": 0}, 400, "max_tokens: 0"),
    "fewer than none": ("/v1/completions", {"max_tokens": -5}, 400, "max_tokens: -5"),
    "foreign token ids": ("/v1/completions", {"prompt": [1, 2, 10**6]}, 400, "1000000"),
    "negative token ids": ("/v1/completions", {"prompt": [-1]}, 400, "-1"),
    "mixed prompt": ("/v1/completions", {"prompt": [1, "a"]}, 400, "mixed"),
    "hot": ("/v1/completions", {"temperature": 9}, 400, "temperature: 9"),
    "top_p of none": ("/v1/completions", {"top_p": 0}, 400, "top_p: 0"),
    "too many choices": ("/v1/completions", {"n": 5000}, 400, "n: 5000"),
    "huge top_k": ("/v1/completions", {"top_k": 2**70}, 400, "top_k"),
    "huge stop id": ("/v1/completions", {"stop_token_ids": [2**70]}, 400, "stop_token_ids"),
    "empty stop": ("/v1/completions", {"stop": [""]}, 400, "stop"),
    "not supported": ("/v1/completions", {"logprobs": 5}, 400, "logprobs is not supported"),
    "no such path": ("/v1/embeddings", {}, 404, "/v1/embeddings"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_clearly(split, name):
    path, change, status, says = CASES[name]
    body = change
    if isinstance(change, dict):
        body = {"model": split.model, **(GOOD if path == "/v1/completions" else {}), **change}
    got, answer = split.call(path, body)
    assert got == status
    assert says in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert split.call("/v1/completions", {"model": split.model, **GOOD})[0] == 200


def test_a_prompt_longer_than_the_context_names_both_lengths(split):
    prompt = [1000] * 9000
    status, answer = split.call("/v1/completions", {"model": split.model, **GOOD, "prompt": prompt})
    assert status == 400
    assert "8192" in answer["error"]["message"]
    assert "9000" in answer["error"]["message"]
    assert answer["error"]["code"] == "context_length_exceeded"
    text = "word " * 9000
    status, answer = split.call(
        "/v1/chat/completions",
        {"model": split.model, "messages": [{"role": "user", "content": text}]},
    )
    assert status == 400
    assert "8192" in answer["error"]["message"]
    assert split.call("/v1/completions", {"model": split.model, **GOOD})[0] == 200


def test_an_unknown_timeline_is_not_found(split):
    status, answer = split.call("/v1/requests/nobody/timeline")
    assert status == 404
    assert "nobody" in answer["error"]["message"]


def test_metrics_count_handoffs(split):
    import time
    import urllib.request

    split.tokens(range(2000, 2100), 2)
    time.sleep(1.5)  # workers report with their heartbeats
    with urllib.request.urlopen(f"{split.url}/metrics") as response:
        text = response.read().decode()
    landed = next(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("relevo_worker_handoff_landed_total")
    )
    assert landed >= 1

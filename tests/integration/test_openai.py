"""The official client, unchanged."""

import openai
import pytest


@pytest.fixture(scope="module")
def client(split):
    return openai.OpenAI(base_url=f"{split.url}/v1", api_key="unused", timeout=60, max_retries=0)


MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_models(client, split):
    assert [m.id for m in client.models.list()] == [split.model]
    assert client.models.retrieve(split.model).id == split.model


def test_chat(client, split):
    answer = client.chat.completions.create(
        model=split.model, messages=MESSAGES, temperature=0, max_tokens=30
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_says_the_same_and_counts(client, split):
    whole = client.chat.completions.create(
        model=split.model, messages=MESSAGES, temperature=0, max_tokens=30
    )
    chunks = list(
        client.chat.completions.create(
            model=split.model, messages=MESSAGES, temperature=0, max_tokens=30, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens": whole.usage.prompt_tokens}
    )


def test_completion_stops_at_a_string(client, split):
    def complete(**options):
        answer = client.completions.create(
            model=split.model, prompt="One, two, three,", temperature=0, max_tokens=24, **options
        )
        return answer.choices[0]

    free = complete()
    stop = free.text[8:12]
    cut = complete(stop=[stop])
    assert cut.text == free.text[: free.text.find(stop)]
    assert cut.finish_reason == "stop"
    assert free.finish_reason == "length"


def test_a_seed_repeats_and_another_differs(client, split):
    def draw(seed):
        answer = client.completions.create(
            model=split.model, prompt="Once upon a time", temperature=1.2, max_tokens=20, seed=seed
        )
        return answer.choices[0].text

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_several_choices_and_several_prompts(client, split):
    answer = client.completions.create(
        model=split.model, prompt=["Hello", "Good day"], n=2, max_tokens=5, seed=3, temperature=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    alone = client.completions.create(
        model=split.model, prompt="Good day", n=2, max_tokens=5, seed=3, temperature=1
    )
    assert [c.text for c in answer.choices[2:]] == [c.text for c in alone.choices]


def test_errors_come_as_the_clients_own(client, split):
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="max_tokens") as error:
        client.chat.completions.create(model=split.model, messages=MESSAGES, max_tokens=0)
    assert error.value.param == "max_tokens"

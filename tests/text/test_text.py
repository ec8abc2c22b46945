import random

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from relevo.errors import InvalidRequest, UnsupportedModel
from relevo.text.chat import ChatTemplate
from relevo.text.detokenizer import Detokenizer, StopStrings
from relevo.text.tokenizer import load_tokenizer

TEXTS = [
    "The quick brown fox, 12345 times!",
    "naïve Ünïcödé — 日本語のテキスト 🎉🏃‍♀️ مرحبا",
    "def f(x):\n\treturn x ** 2  # tabs\n\n\n",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]


@pytest.fixture(scope="module")
def tokenizer(smollm):
    return load_tokenizer(smollm.path, smollm.cache)


@pytest.fixture(scope="module")
def reference(smollm):
    return transformers.AutoTokenizer.from_pretrained(
        smollm.path.parent, gguf_file=smollm.path.name
    )


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_tokenizer_equals_transformers(tokenizer, reference, text):
    assert tokenizer.encode(text, special=False) == reference.encode(text, add_special_tokens=False)


def test_ends_and_chat_template_come_from_the_file(tokenizer):
    text = tokenizer.chat.render([{"role": "user", "content": "hi"}])
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.end_ids == (2,)


@pytest.mark.parametrize("text", TEXTS)
def test_detokenizing_one_by_one_gives_the_text_and_never_half_a_character(tokenizer, text):
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add([token]) for token in tokenizer.encode(text, special=False)]
    assert not any("\ufffd" in piece for piece in pieces)
    whole = "".join(pieces) + detokenizer.flush()
    assert whole == tokenizer.decode(tokenizer.encode(text, special=False))


def test_a_generation_that_ends_inside_a_character_is_flushed(tokenizer):
    tokens = tokenizer.encode("🏃", special=False)
    assert len(tokens) > 1
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.add(tokens[:-1]) == ""
    assert "\ufffd" in detokenizer.flush()


def test_garbage_bytes_do_not_stall_the_stream(tokenizer):
    lone = tokenizer.encode("🏃", special=False)[:1]
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.add(lone) for _ in range(12))
    assert text, "bytes that never become a character are handed out in the end"


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
       st.integers(0, 2**32))  # fmt: skip
def test_stop_strings_cut_at_the_first_however_the_text_is_split(text, stops, seed):
    cuts = random.Random(seed)
    matcher = StopStrings(stops)
    out, rest = "", text
    while rest and not matcher.stopped:
        size = cuts.randint(1, 5)
        out += matcher.add(rest[:size])
        rest = rest[size:]
    # What a reader without the stream would do, character by character.
    expected, stopped = text, False
    for end in range(len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            expected, stopped = text[: end - max(map(len, hits))], True
            break
    assert matcher.stopped == stopped
    assert out + matcher.flush() == expected


def test_a_template_that_refuses_says_so():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", bos_token="",
                            eos_token="")  # fmt: skip
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render([{"role": "user", "content": "hi"}])


def test_a_template_cannot_reach_python():
    template = ChatTemplate("{{ ''.__class__.__mro__ }}", bos_token="", eos_token="")
    with pytest.raises(InvalidRequest):
        template.render([])


def test_files_that_are_no_model_are_named(tmp_path):
    foreign = tmp_path / "photo.gguf"
    foreign.write_bytes(b"\x89PNG" + bytes(1000))
    with pytest.raises(UnsupportedModel, match=r"photo\.gguf"):
        load_tokenizer(foreign, tmp_path / "cache")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path, tmp_path / "cache")

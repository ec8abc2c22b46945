import random

import pytest
import torch
import transformers

from relevo.engine.scheduler import Chunk, Step
from relevo.engine.sequence import Sequence
from relevo.errors import UnsupportedModel
from relevo.types import Sampling

from .conftest import greedy, make_engine, run_all

PROMPT = [random.Random(1).randrange(128) for _ in range(90)]


def logits_after(engine, prompt, chunk):
    """Of the token after the prompt: all but its last token in chunks, the last as a decode."""
    sequence = Sequence("s", list(prompt), Sampling(1))
    sequence.pages = engine.pool.allocate(len(prompt) // engine.config.page_tokens + 1)
    for first in range(0, len(prompt) - 1, chunk):
        last = min(first + chunk, len(prompt) - 1)
        engine.runner.logits(Step((), (Chunk(sequence, first, last),)))
    logits = engine.runner.logits(Step((sequence,), ()))
    engine.pool.release(sequence.pages)
    return logits[0].float()


@pytest.mark.parametrize("chunk", [1000, 16, 7])
def test_logits_equal_transformers(checkpoint, tmp_path, chunk):
    folder, reference = checkpoint
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0, -1]
    got = logits_after(make_engine(folder, tmp_path), PROMPT, chunk)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_greedy_generation_equals_transformers_in_a_batch(checkpoint, tmp_path):
    folder, reference = checkpoint
    engine = make_engine(folder, tmp_path, step_tokens=24)
    sequences = [greedy(str(n), PROMPT[:n], 12) for n in (1, 2, 15, 16, 17, 40)]
    run_all(engine, sequences)
    for sequence in sequences:
        prompt = torch.tensor([sequence.tokens[: sequence.prompt_length]])
        expected = reference.generate(
            prompt, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert sequence.tokens == expected[0].tolist()


def test_smollm_equals_transformers(smollm, tmp_path):
    """The GGUF file through our reader against the same file through transformers'."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        smollm.path.parent, gguf_file=smollm.path.name, dtype=torch.float32
    )
    prompt = [random.Random(2).randrange(1000, 30000) for _ in range(150)]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    got = logits_after(make_engine(smollm.path, tmp_path, pool_bytes=64 << 20), prompt, 64)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("damage", ["cut header", "cut data", "foreign"])
def test_damaged_safetensors_are_named(checkpoint, tmp_path, damage):
    folder, _ = checkpoint
    copy = tmp_path / "model"
    copy.mkdir()
    (copy / "config.json").write_text((folder / "config.json").read_text())
    data = (folder / "model.safetensors").read_bytes()
    broken = {"cut header": data[:50], "cut data": data[:-500], "foreign": b"\x89PNG" + data}
    (copy / "model.safetensors").write_bytes(broken[damage])
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors"):
        make_engine(copy, tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 1000, 2_000_000])
def test_truncated_gguf_is_named(smollm, tmp_path, keep):
    cut = tmp_path / "cut.gguf"
    with smollm.path.open("rb") as whole:
        cut.write_bytes(whole.read(keep))
    with pytest.raises(UnsupportedModel, match=r"cut\.gguf"):
        make_engine(cut, tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('"architectures": ["MambaForCausalLM"]', "MambaForCausalLM"),
        ('"hidden_act": "gelu"', "gelu"),
        ('"rope_parameters": {"rope_type": "yarn"}', "yarn"),
    ],
)
def test_what_cannot_run_is_refused_by_name(tmp_path, change, says):
    config = transformers.LlamaConfig(architectures=["LlamaForCausalLM"]).to_json_string()
    (tmp_path / "config.json").write_text(config.rstrip().rstrip("}") + f", {change}}}")
    with pytest.raises(UnsupportedModel, match=says):
        make_engine(tmp_path, tmp_path)

import numpy as np
import pytest
import torch
import transformers

from relevo.engine.engine import Engine, EngineConfig
from relevo.engine.sequence import Sequence
from relevo.types import Sampling

COMMON = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

CHECKPOINTS = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, tie_word_embeddings=False),
    "llama-tied-mha": lambda: transformers.LlamaConfig(
        **{**COMMON, "num_key_value_heads": 4}, tie_word_embeddings=True
    ),
    "llama3-rope": lambda: transformers.LlamaConfig(
        **COMMON,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=32),
}


@pytest.fixture(scope="session", params=sorted(CHECKPOINTS))
def checkpoint(request, tmp_path_factory):
    """(folder, reference model) of a small random model."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    config = CHECKPOINTS[request.param]()
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # ones and zeros would hide their use
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder, model


def make_engine(folder, tmp_path, **settings):
    settings = {"dtype": "float32", "pool_bytes": 8 << 20, **settings}
    config = EngineConfig(folder, tmp_path / "cache", **settings)
    return Engine(config, lambda name, size: np.zeros(size, dtype=np.uint8))


def run_all(engine, sequences):
    """Steps until every sequence has ended; returns how many steps it took."""
    steps = 0
    for sequence in sequences:
        engine.scheduler.add(sequence)
    while any(s.finish is None for s in sequences):
        engine.scheduler.admit()
        step = engine.scheduler.schedule()
        assert step is not None, "stuck"
        engine.run(step)
        steps += 1
        assert steps < 10_000
    return steps


def greedy(id, prompt, tokens):
    return Sequence(id, list(prompt), Sampling(tokens, temperature=0))

"""A model as a folder that engines other than the embedded one read."""

from __future__ import annotations

from pathlib import Path

from relevo.engine.models.export import export_model
from relevo.launch.model_source import ModelSource
from relevo.text.gguf_tokenizer import convert_tokenizer


def huggingface_folder(model: ModelSource) -> Path:
    """As it is where it is one; a GGUF file is exported once. Raises UnsupportedModel."""
    if model.path.is_dir():
        return model.path
    return export_model(model.path, convert_tokenizer(model.path, model.cache), model.cache)

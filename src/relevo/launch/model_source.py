"""What the user calls a model, and where its files and its cache are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from relevo.errors import UnsupportedModel
from relevo.launch.cache import cache_root
from relevo.launch.demo_model import DEMO_MODEL, demo_model_path


@dataclass(frozen=True)
class ModelSource:
    """`path` is a folder or a GGUF file; `cache` a folder for what is derived from it; `name`
    is what requests ask for."""

    name: str
    path: Path
    cache: Path


def resolve_model(model: str) -> ModelSource:
    """`model` is a folder, a GGUF file, a Hugging Face hub name, or the demo model's name.

    Raises UnsupportedModel, saying what was looked for.
    """
    if model.lower() == DEMO_MODEL.lower():
        return _source(DEMO_MODEL, demo_model_path(cache_root()))
    path = Path(model).expanduser()
    if path.exists():
        return _source(path.stem if path.is_file() else path.resolve().name, path.resolve())
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _source(model, _from_hub(model))
    raise UnsupportedModel(
        f"{model}: no such file or folder, and not a hub name (owner/name) or {DEMO_MODEL}"
    )


def _source(name: str, path: Path) -> ModelSource:
    return ModelSource(name, path, cache_root() / "derived" / _key(path))


def _key(path: Path) -> str:
    """Changes when the files do: path, sizes and times of modification."""
    folder = [*path.glob("*.safetensors*"), *path.glob("*.json")]
    files = [path] if path.is_file() else sorted(folder)
    parts = [str(path)]
    for file in files:
        stat = file.stat()
        parts.append(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}")
    digest = hashlib.blake2b("|".join(parts).encode(), digest_size=8).hexdigest()
    return f"{path.stem}-{digest}"


def _from_hub(name: str) -> Path:
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]
        )
    except Exception as error:  # the hub client's errors have no common base
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModel(f"{name}: cannot be had from the hub: {reason}") from error
    return Path(folder)

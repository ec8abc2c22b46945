"""Reads a model's tensors by their Hugging Face names, whatever file they are in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch

from relevo.engine.models.config import ModelConfig, config_from_hf
from relevo.errors import UnsupportedModel


class Checkpoint(Protocol):
    """A source of weights."""

    config: ModelConfig

    def tensor(self, name: str) -> torch.Tensor:
        """Raises UnsupportedModel, naming file and tensor, if it is not there."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """A folder with config.json and safetensors, or a GGUF file."""
    if path.is_file():
        from relevo.engine.models.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(path)
    return SafetensorsCheckpoint(path)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UnsupportedModel(f"{path}: no such file") from error
    except ValueError as error:
        raise UnsupportedModel(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path}: expected an object")
    return content


class SafetensorsCheckpoint:
    """A Hugging Face folder, its weights in one file or in shards."""

    def __init__(self, folder: Path) -> None:
        self.config = config_from_hf(read_json(folder / "config.json"), str(folder / "config.json"))
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        files = (
            sorted(set(read_json(index)["weight_map"].values()))
            if index.exists()
            else ["model.safetensors"]
        )
        self._where: dict[str, Callable[[str], torch.Tensor]] = {}
        for file in files:
            opened = self._open(folder / file)
            self._where |= dict.fromkeys(opened.keys(), opened.get_tensor)

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            return safetensors.safe_open(path, framework="pt")
        except FileNotFoundError as error:
            raise UnsupportedModel(f"{path}: no such file") from error
        except (safetensors.SafetensorError, OSError) as error:
            raise UnsupportedModel(f"{path}: truncated or no safetensors file: {error}") from error

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._where:
            raise UnsupportedModel(f"{self._folder}: tensor {name} is missing")
        return self._where[name](name)

"""A model's tokenizer, chat template and end-of-text tokens, from a folder or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from relevo.errors import UnsupportedModel
from relevo.text.chat import ChatTemplate


class Tokenizer:
    """Immutable and thread-safe. Token ids are plain ints; `longest_token` is in characters, so
    that a text has no fewer tokens than its length divided by it."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat: ChatTemplate | None,
        end_ids: Sequence[int],
    ) -> None:
        self._backend = backend
        self.chat = chat
        self.end_ids = tuple(end_ids)
        self.longest_token = max(len(text) for text in backend.get_vocab())

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """`special` adds what the model expects around plain text (such as a start token)."""
        return self._backend.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out. A cut character becomes U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=True)


def load_tokenizer(model: Path, cache: Path) -> Tokenizer:
    """From a Hugging Face folder or a GGUF file. Raises UnsupportedModel, naming the file.

    Reading a GGUF file's vocabulary takes seconds, so it is done once, into a folder in `cache`.
    """
    if model.is_file():
        from relevo.text.gguf_tokenizer import convert_tokenizer

        model = convert_tokenizer(model, cache)
    path = model / "tokenizer.json"
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for all of its faults
        raise UnsupportedModel(f"{path}: no readable tokenizer: {error}") from error
    backend.no_truncation()  # some folders carry what a training script had set
    backend.no_padding()
    settings = _read_json(model / "tokenizer_config.json")
    return Tokenizer(backend, _chat_template(model, settings), _end_ids(model, settings, backend))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise UnsupportedModel(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path}: expected an object")
    return content


def _token_text(value: Any) -> str | None:
    """Token settings are a string, or an object with the string as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(model: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    file = model / "chat_template.jinja"
    source = file.read_text() if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    if not source:
        return None
    return ChatTemplate(
        source,
        bos_token=_token_text(settings.get("bos_token")) or "",
        eos_token=_token_text(settings.get("eos_token")) or "",
    )


def _end_ids(model: Path, settings: dict[str, Any], backend: tokenizers.Tokenizer) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(model / name).get("eos_token_id")
        if value is not None:
            ids += value if isinstance(value, list) else [value]
    text = _token_text(settings.get("eos_token"))
    if text is not None and (token := backend.token_to_id(text)) is not None:
        ids.append(token)
    return sorted(set(ids))

"""Converts the tokenizer in a GGUF file's metadata to the files that a model folder has."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from relevo.errors import UnsupportedModel

_FORMAT = 1
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

# How a byte-level BPE cuts text before merging, by `tokenizer.ggml.pre`.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "default": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "qwen2": [
        pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def convert_tokenizer(path: Path, cache: Path) -> Path:
    """A folder in `cache`, written whole or not at all unless it is there.

    Raises UnsupportedModel, naming the file and what in it is not known.
    """
    folder = cache / f"tokenizer-v{_FORMAT}"
    if folder.exists():
        return folder
    fields = _read_fields(path)
    try:
        backend = _build(path, fields)
    except KeyError as error:
        raise UnsupportedModel(f"{path}: {error.args[0]} is missing") from error
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=cache))
    backend.save(str(draft / "tokenizer.json"))
    settings = {
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_token": _text_of(fields, "bos"),
        "eos_token": _text_of(fields, "eos"),
    }
    (draft / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = {fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")} - {None}
    (draft / "generation_config.json").write_text(json.dumps({"eos_token_id": sorted(ends)}))
    try:
        os.rename(draft, folder)
    except OSError:  # another process was first; its result is the same
        shutil.rmtree(draft)
    return folder


def _build(path: Path, fields: dict[str, Any]) -> tokenizers.Tokenizer:
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level(path, fields)
    elif kind == "llama":
        backend = _sentencepiece(fields)
    else:
        raise UnsupportedModel(f"{path}: tokenizer.ggml.model {kind!r} is neither gpt2 nor llama")
    tokens = fields["tokenizer.ggml.tokens"]
    for text, type_ in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True):
        if type_ in (_CONTROL, _USER_DEFINED):
            special = type_ == _CONTROL
            backend.add_tokens([AddedToken(text, special=special, normalized=False)])
    _add_bos(backend, fields)
    return backend


def _read_fields(path: Path) -> dict[str, Any]:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        return {
            name: field.contents()
            for name, field in reader.fields.items()
            if name.startswith("tokenizer.")
        }
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise UnsupportedModel(f"{path}: not a readable GGUF file: {error}") from error


def _text_of(fields: dict[str, Any], name: str) -> str:
    token = fields.get(f"tokenizer.ggml.{name}_token_id")
    return "" if token is None else fields["tokenizer.ggml.tokens"][token]


def _byte_level(path: Path, fields: dict[str, Any]) -> tokenizers.Tokenizer:
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise UnsupportedModel(f"{path}: tokenizer.ggml.pre {pre!r} is not one of {known}")
    vocabulary = {text: i for i, text in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=pre == "llama-bpe")
    )
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(_SPLITS[pre])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: dict[str, Any]) -> tokenizers.Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    scores: list[float] = fields["tokenizer.ggml.scores"]
    vocabulary = {text: i for i, text in enumerate(tokens)}
    merges: list[tuple[float, tuple[str, str]]] = []
    for text, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(text)):
            pair = (text[:cut], text[cut:])
            if pair[0] in vocabulary and pair[1] in vocabulary:
                merges.append((score, pair))
    merges.sort(key=lambda merge: -merge[0])
    unknown = _text_of(fields, "unknown") or None
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            [pair for _, pair in merges],
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    undo: list[decoders.Decoder] = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        undo.append(decoders.Strip(content=" ", left=1))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(undo)
    return backend


def _add_bos(backend: tokenizers.Tokenizer, fields: dict[str, Any]) -> None:
    default = fields.get("tokenizer.ggml.model") == "llama"
    if not fields.get("tokenizer.ggml.add_bos_token", default):
        return
    text, token = _text_of(fields, "bos"), fields["tokenizer.ggml.bos_token_id"]
    backend.post_processor = processors.TemplateProcessing(
        single=[text, "$A"], special_tokens=[(text, token)]
    )

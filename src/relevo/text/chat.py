"""Chat templates: the Jinja dialect that model folders carry."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from relevo.errors import InvalidRequest, UnsupportedModel


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class ChatTemplate:
    """Renders messages to the text that the model was trained on. Runs in Jinja's sandbox."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedModel(f"chat template: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt up to where the assistant speaks. Raises InvalidRequest where the template
        refuses the messages (such as roles out of turn)."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._tokens
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise InvalidRequest(
                f"the model's chat template refused the messages: {error}", "messages"
            ) from error

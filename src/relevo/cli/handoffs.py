"""`relevo handoffs` and `relevo release`: what `--hold-handoffs` keeps waiting, over the admin
routes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from relevo.errors import InvalidRequest, StateError

TIMEOUT_S = 10.0


def list_handoffs(url: str) -> int:
    held = _call(f"{url}/admin/handoffs")["handoffs"]
    if not held:
        print("no hand-off is held (workers hold them when started with --hold-handoffs)")
    for handoff in held:
        print(_described(handoff))
    return 0


def release_handoff(url: str, id: str) -> int:
    _call(f"{url}/admin/handoffs/{quote(id, safe='')}/release", b"")
    print(f"released {id}")
    return 0


def _described(handoff: dict[str, Any]) -> str:
    sums = handoff["checksums"]
    layers = [
        f"    layer {index:3}  sent {sent}  arrived {arrived}"
        for index, (sent, arrived) in enumerate(zip(sums["sent"], sums["arrived"], strict=True))
    ]
    first, pages = handoff["first_page"], handoff["pages"]
    return "\n".join(
        [
            f"{handoff['id']}  request {handoff['request']}",
            f"    {handoff['prefill']} to {handoff['decode']}, held for {handoff['held_s']} s",
            f"    {handoff['prompt_tokens']} prompt tokens, {handoff['bytes']:,} bytes; "
            f"the prompt's pages {first} to {first + len(pages) - 1} are in pages "
            f"{', '.join(map(str, pages))}",
            *layers,
        ]
    )


def _call(url: str, body: bytes | None = None) -> Any:
    """The answer's JSON. Raises what the server said, or that there is none."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise InvalidRequest(_message(error)) from error
    except (OSError, ValueError) as error:
        raise StateError(f"no Relevo router answers at {url}: {error}") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answered {error.code}"

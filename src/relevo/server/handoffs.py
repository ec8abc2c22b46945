"""The admin routes for `--hold-handoffs`: what waits, and letting it go on."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from relevo.errors import InvalidRequest
from relevo.router.registry import Held, Member
from relevo.router.router import Router
from relevo.server.api import json_response


def add_handoff_routes(app: web.Application, router: Router) -> None:
    async def held(request: web.Request) -> web.Response:
        return json_response({"handoffs": [_described(*entry) for entry in router.held()]})

    async def release(request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if not router.release(_parsed(id)):
            raise InvalidRequest(f"no hand-off {id!r} is held", "id", "not_found")
        return json_response({"released": id})

    app.add_routes(
        [
            web.get("/admin/handoffs", held),
            web.post("/admin/handoffs/{id}/release", release),
        ]
    )


def _parsed(id: str) -> int:
    try:
        return int(id, 16)
    except ValueError as error:
        raise InvalidRequest(f"{id!r} is no hand-off id, which are hexadecimal", "id") from error


def _described(member: Member, held: Held) -> dict[str, Any]:
    what = held.what
    return {
        "id": f"{what.handoff:016x}",
        "request": what.request,
        "prefill": what.prefill,
        "decode": member.info.worker,
        "held_s": round(time.monotonic() - held.since, 1),
        "prompt_tokens": what.prompt_tokens,
        "first_page": what.first_page,
        "pages": what.pages,
        "bytes": what.size,
        "checksums": held.checksums(),
    }

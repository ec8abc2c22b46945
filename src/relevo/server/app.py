"""The HTTP application: routes, and errors in OpenAI's shape."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from relevo.errors import ConfigError, InvalidRequest, RelevoError
from relevo.router.router import Router
from relevo.router.timelines import describe
from relevo.server.answers import error_body, headers_of, status_of
from relevo.server.api import Api, json_response
from relevo.server.handoffs import add_handoff_routes
from relevo.server.metrics import render_metrics
from relevo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LARGEST_BODY = 16 << 20


def make_app(router: Router, tokenizer: Tokenizer, model: str) -> web.Application:
    api = Api(router, tokenizer, model)
    started = int(time.time())
    app = web.Application(middlewares=[answer_errors], client_max_size=LARGEST_BODY)

    def entry() -> dict[str, str | int | None]:
        context = router.max_context() if router.ready else None
        return {"id": model, "object": "model", "created": started, "owned_by": "relevo",
                "max_model_len": context}  # fmt: skip

    async def models(request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [entry()]})

    async def one_model(request: web.Request) -> web.Response:
        if request.match_info["model"] != model:
            raise InvalidRequest(f"model: {model!r} is served here", "model", "model_not_found")
        return json_response(entry())

    async def health(request: web.Request) -> web.Response:
        now = time.monotonic()
        workers = [
            {
                "worker": m.info.worker,
                "role": m.info.role,
                "pid": m.info.pid,
                "pages": m.info.pages,
                "silent_s": round(m.liveness.silence(now), 3),
                "load": m.load,
            }
            for m in router.registry
        ]
        state = "ready" if router.ready else "starting"
        body = {"status": state, "model": model, "workers": workers}
        return json_response(body, 200 if router.ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(router), content_type="text/plain")

    async def timeline(request: web.Request) -> web.Response:
        found = router.timelines.get(request.match_info["id"])
        if found is None:
            raise InvalidRequest(
                f"no timeline of request {request.match_info['id']!r}", "id", "not_found"
            )
        return json_response(describe(found))

    app.add_routes(
        [
            web.post("/v1/chat/completions", api.chat),
            web.post("/v1/completions", api.completions),
            web.get("/v1/models", models),
            web.get("/v1/models/{model:.+}", one_model),
            web.get("/v1/requests/{id}/timeline", timeline),
            web.get("/health", health),
            web.get("/metrics", metrics),
        ]
    )
    add_handoff_routes(app, router)
    return app


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RelevoError as error:
        return json_response(error_body(error), status_of(error), headers_of(error))
    except web.HTTPException as error:
        wrong = InvalidRequest(f"{request.method} {request.path}: {error.reason}")
        return json_response(error_body(wrong), error.status)
    except ConnectionResetError:
        raise  # the client has gone; nobody is left to be told
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return json_response(error_body(RelevoError("internal error; see the log")), 500)


async def listen(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serves until the runner is cleaned up; returns the port, which is chosen if 0 is given."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError("port", f"cannot listen on {host}:{port}: {error.strerror}") from error
    assert site._server is not None
    sockets: list[socket.socket] = site._server.sockets  # type: ignore[attr-defined]
    return runner, sockets[0].getsockname()[1]

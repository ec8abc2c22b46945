"""A proxy before stock `vllm serve` processes that carry Relevo's connector: it sends each request
to a decode server and, at the same time, its prompt to a prefill server. The two meet by a number
drawn here. See docs/vllm.md."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from relevo.errors import InvalidRequest, Overloaded, WorkerLost
from relevo.server.app import LARGEST_BODY, answer_errors

log = logging.getLogger(__name__)

RETRY_S = 2.0  # after which a server that did not answer is tried again
CONNECT_S = 5.0
ASK_S = 5.0
LATE_S = 5.0  # by which a prompt's answer may come after its request's
# Of a request, what is not for the side that computes the prompt only.
DECODE_ONLY = (
    "best_of", "logprobs", "max_completion_tokens", "min_tokens", "n", "response_format", "stop",
    "stop_token_ids", "stream", "stream_options", "structured_outputs", "top_logprobs",
)  # fmt: skip


@dataclass(eq=False)
class Server:
    """`endpoint`: where the connector of a prefill server listens, once it has been asked."""

    url: str
    in_flight: int = 0
    endpoint: str = ""
    retry_at: float = 0.0

    def usable(self, now: float) -> bool:
        return now >= self.retry_at

    def failed(self, why: object) -> None:
        log.warning("%s: %s", self.url, why)
        self.endpoint = ""
        self.retry_at = time.monotonic() + RETRY_S


class Proxy:
    """`session` is used from its own loop and closed by whoever made it. `watch` has to run beside
    it: it asks prefill servers where their connectors listen."""

    def __init__(
        self, prefill: Sequence[str], decode: Sequence[str], session: aiohttp.ClientSession
    ) -> None:
        self._prefill = [Server(url.rstrip("/")) for url in prefill]
        self._decode = [Server(url.rstrip("/")) for url in decode]
        self._session = session
        self._computing: set[asyncio.Task[None]] = set()
        self._headers: dict[str, str] = {}  # of the last request: servers may ask for a key
        self.counters = {"disaggregated": 0, "decode_only": 0, "prefill_failed": 0}

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(RETRY_S / 4)

    async def look(self) -> None:
        """Asks those that have not told yet."""
        now = time.monotonic()
        unknown = [s for s in self._prefill if not s.endpoint and s.usable(now)]
        await asyncio.gather(*(self._ask_endpoint(server) for server in unknown))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Both sides at once."""
        try:
            body = await request.json()
        except ValueError as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise InvalidRequest("the body is not an object")
        decode = self._least_busy(self._decode)
        if decode is None:
            raise Overloaded("no decode server answers", retry_after_s=2)
        self._headers = _headers_of(request)
        prefill = self._least_busy([server for server in self._prefill if server.endpoint])
        if prefill is None:
            self.counters["decode_only"] += 1
            return await self._answer(request, decode, body)
        self.counters["disaggregated"] += 1
        handoff = secrets.randbits(63)
        ours = {"handoff": handoff, "prefill": [prefill.endpoint]}
        headers = self._headers
        computing = asyncio.create_task(
            self._compute(prefill, request.path, body, handoff, headers)
        )
        self._computing.add(computing)
        computing.add_done_callback(self._computing.discard)
        wanted = False
        try:
            response = await self._answer(
                request, decode, body | {"kv_transfer_params": {"relevo": ours}}
            )
            wanted = response.status == 200
        finally:
            if wanted:
                asyncio.get_running_loop().call_later(LATE_S, self._give_up, computing, prefill)
            else:  # refused, or the client has gone: nobody waits for the prompt
                computing.cancel()
        return response

    @staticmethod
    def _give_up(computing: asyncio.Task[None], server: Server) -> None:
        """Its request was answered long ago."""
        if not computing.done():
            computing.cancel()
            server.failed("does not answer any more")

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Anything else is a decode server's business."""
        decode = self._least_busy(self._decode)
        if decode is None:
            raise Overloaded("no decode server answers", retry_after_s=2)
        body = await request.read()
        return await self._answer(request, decode, body)

    async def counts(self, request: web.Request) -> web.Response:
        lines = [f'relevo_proxy_requests_total{{how="{k}"}} {v}' for k, v in self.counters.items()]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    @staticmethod
    def _least_busy(servers: Sequence[Server]) -> Server | None:
        now = time.monotonic()
        usable = [server for server in servers if server.usable(now)]
        return min(usable, key=lambda server: server.in_flight, default=None)

    async def _ask_endpoint(self, server: Server) -> None:
        body = {"prompt": [0], "max_tokens": 1, **_meet(0)}
        timeout = aiohttp.ClientTimeout(total=ASK_S, connect=CONNECT_S)
        answer: Any = None
        try:
            async with self._session.post(
                f"{server.url}/v1/completions", json=body, timeout=timeout, headers=self._headers
            ) as response:
                answer = await response.json()
            server.endpoint = _endpoint_in(answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            server.failed(f"does not answer: {error!r}")
        except ValueError as error:
            server.failed(error)

    async def _compute(
        self,
        server: Server,
        path: str,
        body: dict[str, Any],
        handoff: int,
        headers: dict[str, str],
    ) -> None:
        """The prompt alone. Its answer is of no use but for where the server is."""
        asked = {k: v for k, v in body.items() if k not in DECODE_ONLY}
        asked |= {"max_tokens": 1, **_meet(handoff)}
        server.in_flight += 1
        try:
            async with self._session.post(
                server.url + path, json=asked, headers=headers
            ) as response:
                answer = await response.json()
            if response.status == 200:
                server.endpoint = _endpoint_in(answer)
                return
            self.counters["prefill_failed"] += 1
            log.warning("%s: HTTP %d: %.300r", server.url, response.status, answer)
            if response.status >= 500:
                server.failed(f"HTTP {response.status}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.counters["prefill_failed"] += 1
            server.failed(f"failed: {error!r}")
        finally:
            server.in_flight -= 1

    async def _answer(
        self, request: web.Request, server: Server, body: dict[str, Any] | bytes
    ) -> web.StreamResponse:
        """A decode server's answer, passed on as it comes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = _headers_of(request)
        if "Content-Type" in request.headers:
            headers["Content-Type"] = request.headers["Content-Type"]
        if not isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        server.in_flight += 1
        try:
            try:
                upstream = await self._session.request(
                    request.method, server.url + request.path_qs, data=data, headers=headers
                )
            except aiohttp.ClientError as error:
                server.failed(f"failed: {error!r}")
                raise WorkerLost(f"the decode server did not answer: {error}") from error
            async with upstream:
                return await _pass_on(request, upstream)
        finally:
            server.in_flight -= 1


def _headers_of(request: web.Request) -> dict[str, str]:
    """Those that both sides need."""
    names = ("Authorization", "X-Request-Id")
    return {name: request.headers[name] for name in names if name in request.headers}


async def _pass_on(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=upstream.status)
    response.content_type = upstream.content_type
    await response.prepare(request)
    while True:
        try:
            piece = await upstream.content.readany()
        except aiohttp.ClientError as error:
            # The status has been sent: all that is left is not to end as if all were well.
            log.warning("a decode server broke off: %r", error)
            if request.transport is not None:
                request.transport.close()
            return response
        if not piece:
            await response.write_eof()
            return response
        await response.write(piece)


def _endpoint_in(answer: Any) -> str:
    """Raises ValueError, with the answer, where it names none."""
    try:
        return str(answer["kv_transfer_params"]["relevo"]["endpoint"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"did not name its connector's endpoint, but said {answer!r:.300}") from (
            error
        )


def _meet(handoff: int) -> dict[str, Any]:
    return {"kv_transfer_params": {"relevo": {"handoff": handoff}}}


def make_proxy_app(prefill: Sequence[str], decode: Sequence[str]) -> web.Application:
    app = web.Application(middlewares=[answer_errors], client_max_size=LARGEST_BODY)

    async def start(app: web.Application) -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        app[SESSION] = session
        proxy = Proxy(prefill, decode, session)
        app[PROXY] = proxy
        await proxy.look()  # so that the first request finds what is there
        app[WATCH] = asyncio.create_task(proxy.watch())

    async def stop(app: web.Application) -> None:
        app[WATCH].cancel()
        await app[SESSION].close()

    async def generate(request: web.Request) -> web.StreamResponse:
        return await app[PROXY].generate(request)

    async def forward(request: web.Request) -> web.StreamResponse:
        return await app[PROXY].forward(request)

    async def counts(request: web.Request) -> web.Response:
        return await app[PROXY].counts(request)

    app.on_startup.append(start)
    app.on_cleanup.append(stop)
    app.add_routes(
        [
            web.post("/v1/completions", generate),
            web.post("/v1/chat/completions", generate),
            web.get("/proxy/metrics", counts),
            web.route("*", "/{path:.*}", forward),
        ]
    )
    return app


SESSION = web.AppKey("session", aiohttp.ClientSession)
PROXY = web.AppKey("proxy", Proxy)
WATCH = web.AppKey("watch", asyncio.Task[None])

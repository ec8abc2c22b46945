"""The router's process, HTTP in front and a control socket behind, and the proxy's."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from relevo.router.router import Router
from relevo.server.app import listen, make_app
from relevo.server.proxy import make_proxy_app
from relevo.text.tokenizer import load_tokenizer


async def run_proxy(
    prefill: Sequence[str],
    decode: Sequence[str],
    host: str,
    port: int,
    on_ready: Callable[[str], object],
) -> None:
    """Until SIGTERM or SIGINT. `prefill` and `decode` are the URLs of servers."""
    stopping = _stopping()
    runner, bound = await listen(make_proxy_app(prefill, decode), host, port)
    on_ready(f"http://{host}:{bound}")
    await stopping.wait()
    await runner.cleanup()


def _stopping() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def run_router(
    model: Path,
    cache: Path,
    *,
    name: str,
    host: str,
    port: int,
    control: str,
    on_ready: Callable[[str, str], object],
) -> None:
    """Until SIGTERM or SIGINT. `model` and `cache` are where the tokenizer is, `name` is what
    requests ask for; `on_ready(url, control endpoint)` is called once it listens."""
    stopping = _stopping()
    router = Router(control)
    app = make_app(router, load_tokenizer(model, cache), name)
    runner, bound = await listen(app, host, port)
    routing = asyncio.create_task(router.run())
    stopped = asyncio.create_task(stopping.wait())
    on_ready(f"http://{host}:{bound}", router.endpoint)
    await asyncio.wait([routing, stopped], return_when=asyncio.FIRST_COMPLETED)
    await runner.cleanup()
    stopped.cancel()
    if routing.done():
        routing.result()  # a router that can no longer hear its workers must not look alive
    routing.cancel()
    await asyncio.gather(routing, return_exceptions=True)

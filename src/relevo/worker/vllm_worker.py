"""A worker of ours that runs vLLM's asynchronous engine: for the router it is like any other."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shlex
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vllm
import zmq
import zmq.asyncio
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from relevo.errors import ConfigError, WorkerLost
from relevo.types import Role
from relevo.wire.messages import (
    PROTOCOL_VERSION,
    Cancel,
    PrefillDone,
    PrefillRequest,
    Register,
    Timeline,
)
from relevo.wire.sockets import AsyncListener
from relevo.worker.control import Control
from relevo.worker.vllm_requests import VllmRequests

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VllmWorkerConfig:
    """As WorkerConfig. `model` is a folder that vLLM reads; `arguments` are vLLM's own,
    as on its command line; `cores` are those that it may use."""

    name: str
    role: Role
    router: str
    model: Path
    model_name: str
    dtype: str
    kv_bytes: int
    arguments: str
    cores: tuple[int, ...]
    transport: str = "local"
    host: str = "127.0.0.1"
    credit_tokens: int = 2560
    local_prefill_tokens: int = 32
    faults: str = ""
    verify_kv: bool = False

    def engine_args(self, owner: str) -> AsyncEngineArgs:
        """`owner`: where the connector's rank speaks to. Raises ConfigError."""
        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
        try:
            parsed = parser.parse_args(["--model", str(self.model), *shlex.split(self.arguments)])
        except (SystemExit, Exception) as error:
            raise ConfigError("vllm-arguments", f"vLLM refuses {self.arguments!r}") from error
        args = AsyncEngineArgs.from_cli_args(parsed)
        args.dtype = self.dtype
        args.kv_cache_memory_bytes = self.kv_bytes
        if self.role is not Role.MIXED:
            args.kv_transfer_config = self._connector(owner)
        return args

    def _connector(self, owner: str) -> Any:
        from vllm.config import KVTransferConfig

        return KVTransferConfig(
            kv_connector="RelevoConnector",
            kv_connector_module_path="relevo.worker.vllm_connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "transport": self.transport,
                "host": self.host,
                "local_prefill_tokens": self.local_prefill_tokens,
                "verify_kv": self.verify_kv,
                "faults": self.faults,
                "owner": owner,
                "name": self.name,
            },
        )


class VllmWorker:
    """`run` returns when it was stopped, and raises when it was lost."""

    def __init__(self, config: VllmWorkerConfig, on_ready: Callable[[], object]) -> None:
        self._config = config
        self._on_ready = on_ready

    def run(self) -> None:
        """vLLM's engine is a process of its own; this one's main thread talks to it."""
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, self._config.cores)))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        asyncio.run(self._run())

    async def _run(self) -> None:
        stopping: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _resolve, stopping, None)
        context = zmq.asyncio.Context()
        owner = AsyncListener(context, f"tcp://{self._config.host}:*", "host")
        requests = VllmRequests(self._config.role, self._config.name)
        args = self._config.engine_args(owner.endpoint)
        engine = AsyncLLM.from_engine_args(args, stat_loggers=[_counting(requests)])
        try:
            await self._serve(engine, owner, requests, stopping)
        finally:
            await requests.drop_all()
            engine.shutdown()
            context.destroy(linger=0)

    async def _serve(
        self,
        engine: AsyncLLM,
        owner: AsyncListener,
        requests: VllmRequests,
        stopping: asyncio.Future[str | None],
    ) -> None:
        loop = asyncio.get_running_loop()
        requests.engine = engine
        endpoint = await requests.endpoint() if self._config.role is Role.PREFILL else ""

        def lost(reason: str) -> None:
            loop.call_soon_threadsafe(_resolve, stopping, reason)

        requests.on_lost = lost
        control = Control(
            context=zmq.Context.instance(),
            router=self._config.router,
            register=self._register(engine, endpoint),
            host=requests,
            transfer=None,
            listener=None,
            faults=None,
            on_registered=self._on_ready,
            on_lost=lost,
        )
        control.attach(requests.beat, None, None)
        requests.to_router = lambda message: control.post(control.to_router, message)
        thread = threading.Thread(target=control.run, name="control", daemon=True)
        thread.start()
        hearing = asyncio.create_task(_hear(owner, requests))
        try:
            reason = await stopping
        finally:
            hearing.cancel()
            control.stop()
            thread.join(timeout=2)
        if reason is not None:
            raise WorkerLost(reason)

    def _register(self, engine: AsyncLLM, endpoint: str) -> Register:
        config, vllm_config = self._config, engine.vllm_config
        return Register(
            worker=config.name,
            incarnation=secrets.randbits(63),
            version=PROTOCOL_VERSION,
            role=config.role,
            model=config.model_name,
            pages=vllm_config.cache_config.num_gpu_blocks,
            page_tokens=vllm_config.cache_config.block_size,
            max_context=vllm_config.model_config.max_model_len,
            vocabulary=vllm_config.model_config.get_vocab_size(),
            credit_tokens=config.credit_tokens,
            local_prefill_tokens=config.local_prefill_tokens,
            pid=os.getpid(),
            endpoint=endpoint,
        )


def _resolve(future: asyncio.Future[str | None], reason: str | None) -> None:
    if not future.done():
        future.set_result(reason)


async def _hear(owner: AsyncListener, requests: VllmRequests) -> None:
    """What the connector's rank says."""
    while True:
        _, message = await owner.receive()
        match message:
            case PrefillRequest():
                requests.compute(message)
            case Cancel():
                requests.stop_computing(message.handoff)
            case PrefillDone():
                requests.prefilled(message.request)
            case Timeline():
                requests.to_router(message)


def _counting(requests: VllmRequests) -> Callable[[Any, int], StatLoggerBase]:
    """vLLM's own counts, as they come with its steps."""

    class Counting(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            requests.pages = vllm_config.cache_config.num_gpu_blocks

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            if scheduler_stats is not None:
                requests.measured(
                    running=scheduler_stats.num_running_reqs,
                    usage=scheduler_stats.kv_cache_usage,
                    events=scheduler_stats.kv_connector_stats or {},
                )

        def log_engine_initialized(self) -> None:
            log.debug("vLLM %s is up", vllm.__version__)

    return Counting

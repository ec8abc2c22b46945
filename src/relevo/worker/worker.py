"""Assembles a worker from its settings and runs it until it is stopped."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zmq

from relevo.engine.engine import Engine, EngineConfig
from relevo.engine.models.weights import Progress
from relevo.errors import ConfigError, WorkerLost
from relevo.messenger.decode_side import DecodeSide
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.types import Role
from relevo.wire.messages import PROTOCOL_VERSION, Register
from relevo.wire.sockets import Listener
from relevo.worker.control import Control
from relevo.worker.embedded import EmbeddedHost
from relevo.worker.engine_loop import EngineLoop
from relevo.worker.faults import parse_faults
from relevo.worker.inbox import Inbox

log = logging.getLogger(__name__)

# How long the engine loop may wait for the interpreter lock while the control thread works; the
# interpreter's own 5 ms would be felt in every step.
SWITCH_INTERVAL_S = 0.0002


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of one worker. `credit_tokens`: how many prompt tokens a prefill worker takes on
    beyond the prompt that it is computing. `host` is the address that others reach it at; `faults`
    makes it misbehave on purpose (see faults.py). `verify_kv`: what lands is checked against
    checksums of what was sent; `hold_handoffs`: and waits to be released."""

    name: str
    role: Role
    router: str
    model_name: str
    engine: EngineConfig
    transport: str = "local"
    host: str = "127.0.0.1"
    credit_tokens: int = 2560
    faults: str = ""
    verify_kv: bool = False
    hold_handoffs: bool = False

    def __post_init__(self) -> None:
        if self.role is not Role.MIXED and self.engine.device != "cpu":
            raise ConfigError(
                "device", f"{self.role} workers hand pages over from CPU memory only; use mixed"
            )


class Worker:
    """One process's worker. `run` returns when it was stopped, and raises when it was lost."""

    def __init__(
        self, config: WorkerConfig, progress: Progress, on_ready: Callable[[], object]
    ) -> None:
        self._config = config
        self._lost: str | None = None
        faults = parse_faults(config.faults)
        self._transfer = (
            None
            if config.role is Role.MIXED
            else TransferEngine(config.transport, config.host, faults.writes)
        )
        allocate = self._transfer.allocate if self._transfer else _private_memory
        engine = Engine(config.engine, allocate, progress)
        engine.warm_up()
        inbox = Inbox()
        self._host = EmbeddedHost(engine, config.name, inbox)
        self._loop = EngineLoop(self._host, inbox, self._transfer, faults.slow)
        self._context = zmq.Context()
        self._listener = (
            Listener(self._context, f"tcp://{config.host}:*", "host")
            if config.role is Role.PREFILL
            else None
        )
        incarnation = secrets.randbits(63)
        self._control = Control(
            context=self._context,
            router=config.router,
            register=self._register(engine, incarnation),
            host=self._host,
            transfer=self._transfer,
            listener=self._listener,
            faults=faults.messages,
            on_registered=on_ready,
            on_lost=self._on_lost,
        )
        self._wire(engine)

    def run(self) -> None:
        """The engine loop, on this thread. SIGTERM and SIGINT end it."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._loop.stop())
        if self._transfer is not None:
            self._transfer.start()
        control = threading.Thread(target=self._run_control, name="control", daemon=True)
        control.start()
        try:
            self._loop.run()
        finally:
            self._control.stop()
            control.join(timeout=2)
            if self._transfer is not None:
                self._transfer.stop()
        if self._lost is not None:
            raise WorkerLost(self._lost)

    def _run_control(self) -> None:
        try:
            self._control.run()
        except BaseException as error:
            log.exception("the control thread failed")
            self._on_lost(f"the control thread failed: {error}")

    def _on_lost(self, reason: str) -> None:
        self._lost = reason
        self._loop.stop()

    def _register(self, engine: Engine, incarnation: int) -> Register:
        config = self._config
        return Register(
            worker=config.name,
            incarnation=incarnation,
            version=PROTOCOL_VERSION,
            role=config.role,
            model=config.model_name,
            pages=engine.layout.pages,
            page_tokens=engine.config.page_tokens,
            max_context=engine.context,
            vocabulary=engine.model_config.vocabulary,
            credit_tokens=config.credit_tokens,
            local_prefill_tokens=engine.config.local_prefill_tokens,
            pid=os.getpid(),
            endpoint=self._listener.endpoint if self._listener else "",
        )

    def _wire(self, engine: Engine) -> None:
        """Gives control thread, messenger and host to each other."""
        decode: DecodeSide | None = None
        prefill: PrefillSide | None = None
        control = self._control
        if self._transfer is not None and self._config.role is Role.DECODE:
            decode = DecodeSide(
                worker=self._config.name,
                model=engine.fingerprint,
                layout=engine.layout,
                transfer=self._transfer,
                host=self._host,
                send=control.to_prefill,
                close=control.close_prefill,
                note=control.note,
                tell=control.to_router,
                beat=self._loop.beat,
                verify=self._config.verify_kv,
                hold=self._config.hold_handoffs,
            )
        elif self._transfer is not None:
            prefill = PrefillSide(
                worker=self._config.name,
                model=engine.fingerprint,
                layout=engine.layout,
                transfer=self._transfer,
                host=self._host,
                send=control.to_decode,
                beat=self._loop.beat,
            )
        control.attach(self._loop.beat, decode, prefill)
        self._host.connect(
            post=control.post,
            to_router=control.to_router,
            request_handoff=decode.request if decode else _no_messenger,
            cancel_handoff=decode.cancel if decode else _no_messenger,
            landings=decode.landings if decode else None,
            report_landing=decode.landed if decode else _no_messenger,
            inspected=decode.inspects if decode else False,
            note_prefill=prefill.note if prefill else _no_messenger,
            abandon_prefill=prefill.abandon if prefill else _no_messenger,
        )


def _private_memory(name: str, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A mixed worker's pool is nobody else's business."""
    return np.zeros(size, dtype=np.uint8)


def _no_messenger(*arguments: object) -> None:
    raise AssertionError("a worker without this side of the messenger was asked for a hand-off")

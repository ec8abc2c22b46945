"""The engine loop: take what has been asked, schedule, compute and push, send what came out."""

from __future__ import annotations

import logging
import time

from relevo.engine.scheduler import Step
from relevo.transfer.engine import TransferEngine
from relevo.wire.messages import Heartbeat
from relevo.worker.embedded import EmbeddedHost
from relevo.worker.inbox import Inbox

log = logging.getLogger(__name__)

IDLE_WAIT_S = 3600.0


class EngineLoop:
    """Runs on the thread that calls `run`, until `stop` is called from any thread. `slow`: each
    step takes that share longer, on purpose."""

    def __init__(
        self, host: EmbeddedHost, inbox: Inbox, transfer: TransferEngine | None, slow: float
    ) -> None:
        self._host = host
        self._inbox = inbox
        self._transfer = transfer
        self._slow = slow
        self._stopping = False
        self._steps = 0
        self._idle = False

    def beat(self) -> Heartbeat:
        """From any thread."""
        return Heartbeat(self._steps, busy=not self._idle)

    def stop(self) -> None:
        self._stopping = True
        self._inbox.post(lambda: None)

    def run(self) -> None:
        scheduler = self._host.engine.scheduler
        while not self._stopping:
            self._inbox.run_all()
            self._host.poll_landings()
            self._host.admit()
            step = scheduler.schedule()
            if step is None:
                self._host.flush()
                self._idle = True
                self._inbox.wait(IDLE_WAIT_S)
                self._idle = False
            else:
                self._run(step)
                self._steps += 1

    def _run(self, step: Step) -> None:
        pushes = self._host.open_step(step)
        self._host.flush()
        transfer = self._transfer if pushes else None
        if transfer is not None:
            transfer.open_step(pushes)
        begin = time.monotonic()
        try:
            generated = self._host.engine.run(step, transfer.bump if transfer else None)
        except (RuntimeError, MemoryError) as error:  # of the forward pass: out of memory, mostly
            log.exception("a step failed")
            if transfer is not None:
                transfer.end_step(commit=False)
            self._host.fail_step(step, f"the forward pass failed: {error}")
            return
        if transfer is not None:
            transfer.end_step(commit=True)
        if self._slow:
            time.sleep((time.monotonic() - begin) * self._slow)
        self._host.close_step(step, generated)

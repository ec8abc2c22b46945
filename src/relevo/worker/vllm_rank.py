"""The vLLM connector's half beside the model: the messenger, its thread and the transfer engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import torch
import zmq

from relevo.errors import ConfigError
from relevo.messenger.decode_side import DecodeSide
from relevo.messenger.landings import Landing
from relevo.messenger.prefill_side import PrefillSide
from relevo.transfer.engine import TransferEngine
from relevo.types import TimelineEvent
from relevo.wire.messages import Heartbeat, Message, PrefillDone, Timeline
from relevo.wire.sockets import Connection, Listener
from relevo.worker.faults import parse_faults
from relevo.worker.handoff_loop import HandoffLoop
from relevo.worker.vllm_layout import Caches
from relevo.worker.vllm_plan import Results, StepPlan
from relevo.worker.vllm_receiving import ReceivingHost
from relevo.worker.vllm_sending import SendingHost

log = logging.getLogger(__name__)

COUNT_S = 0.5
IDLE_WAIT_S = 0.005  # a new request waits no longer for a step that has nothing to do


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kv_connector_extra_config`. `host`: the address at which peers reach this server."""

    transport: str = "local"
    host: str = "127.0.0.1"
    port: int = 0  # of the control socket; 0: any
    local_prefill_tokens: int = 0
    verify_kv: bool = False
    faults: str = ""
    untested_vllm: bool = False
    owner: str = ""  # a worker of ours that runs this vLLM: its socket's endpoint
    name: str = ""


def settings_of(extra_config: Mapping[str, object]) -> Settings:
    """Raises ConfigError."""
    try:
        return msgspec.convert(dict(extra_config), Settings)
    except msgspec.ValidationError as error:
        raise ConfigError("kv_connector_extra_config", str(error)) from error


@dataclass(frozen=True)
class RankConfig:
    """`model`: what both sides must agree on, in words."""

    name: str
    model: str
    max_tokens: int
    settings: Settings


class RankHalf:
    """One rank's. All methods are the engine's thread's."""

    def __init__(self, config: RankConfig, caches: Caches) -> None:
        settings = config.settings
        faults = parse_faults(settings.faults)
        if faults.slow:
            raise ConfigError("faults", "slow: only with the embedded engine")
        for name, tensor in caches.tensors.items():
            if tensor.device != torch.device("cpu"):
                raise ConfigError("device", f"{name} lies on {tensor.device}; only CPU as yet")
        self._transfer = TransferEngine(settings.transport, settings.host, faults.writes)
        storages = caches.storages()
        starts = self._transfer.adopt("vllm-kv", storages)
        addresses = [address for address, _ in storages]
        layout = caches.layout(0, dict(zip(addresses, starts, strict=True)))
        self._name = config.name
        self._layers = list(caches.tensors)
        self._next_layer = 0
        self._steps = 0
        self._idle = True
        self._empty = True
        self._counted: dict[str, int] = {}
        self._counted_at = 0.0
        self._context = zmq.Context()
        self._listener = Listener(
            self._context, f"tcp://{settings.host}:{settings.port or '*'}", "host"
        )
        self._loop = HandoffLoop(self._context, self._transfer, self._listener, faults.messages)
        self._owner = Connection(self._context, settings.owner) if settings.owner else None
        self._receiving = ReceivingHost(len(self._layers), self._loop.post, self._settled)
        self._sending = SendingHost(
            worker=config.name,
            transfer=self._transfer,
            page_tokens=caches.page_tokens,
            layers=len(self._layers),
            max_tokens=config.max_tokens,
            abandon=lambda handoff, reason: self._loop.post(prefill.abandon, handoff, reason),
            note=lambda handoff, event: self._loop.post(prefill.note, handoff, event),
            tell=self._tell,
        )
        self._decode = DecodeSide(
            worker=config.name,
            model=config.model,
            layout=layout,
            transfer=self._transfer,
            host=self._receiving,
            send=self._loop.to_prefill,
            close=self._loop.close_prefill,
            note=self._note,
            tell=self._tell,
            beat=self._beat,
            verify=settings.verify_kv,
        )
        prefill = PrefillSide(
            worker=config.name,
            model=config.model,
            layout=layout,
            transfer=self._transfer,
            host=self._sending,
            send=self._loop.to_decode,
            beat=self._beat,
        )
        self._receiving.connect(
            landings=self._decode.landings,
            request=self._decode.request,
            cancel=self._decode.cancel,
            report=self._landed,
            inspected=self._decode.inspects,
        )
        self._loop.attach_sides(self._decode, prefill, self._sending.tick)
        self._transfer.start()
        self._thread = threading.Thread(target=self._loop.run, name="relevo", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where decode sides reach this one."""
        return self._listener.endpoint

    def preempt(self, plan: StepPlan) -> None:
        """Before anything of the step is overwritten."""
        if plan.preempted:
            self._sending.preempt(plan.preempted)

    def begin(self, plan: StepPlan) -> None:
        """Before the step's forward pass."""
        self._idle = False
        self._next_layer = 0
        self._empty = plan.empty
        self._receiving.begin(plan)
        self._sending.begin(plan)

    def layer(self, name: str) -> None:
        """After a layer's attention. Called in the forward pass, and so short."""
        if self._next_layer < len(self._layers) and self._layers[self._next_layer] == name:
            self._next_layer += 1
            self._sending.layer()

    def end(self) -> None:
        """After the step's forward pass."""
        self._sending.end()

    def results(self) -> Results:
        """At the end of a step. One that had nothing to do sleeps a moment where something is
        outstanding: vLLM steps as fast as it can while a request waits. Raises RuntimeError where
        nothing would ever come."""
        if not self._thread.is_alive():
            raise RuntimeError("the thread of the hand-offs has ended; its error is in the log")
        if self._empty and (self._receiving.waiting or self._sending.waiting):
            self._receiving.wait(IDLE_WAIT_S)
        received, failed = self._receiving.results()
        self._steps += 1
        self._idle = True
        return Results(self._sending.sent(), received, failed)

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(timeout=2)
        self._transfer.stop()

    def changes(self) -> dict[str, int]:
        """What has been counted since the last time; looked at now and then only."""
        now = time.monotonic()
        if now < self._counted_at + COUNT_S and not self._empty:
            return {}
        self._counted_at = now
        before, self._counted = self._counted, self._loop.counters()
        return {k: v - before.get(k, 0) for k, v in self._counted.items() if v != before.get(k, 0)}

    def _beat(self) -> Heartbeat:
        """From the loop's thread."""
        return Heartbeat(self._steps, busy=not self._idle)

    # ---- on the loop's thread ----

    def _landed(self, landing: Landing) -> None:
        self._decode.landed(landing)
        request = self._receiving.label(landing.handoff)
        if request is not None and not landing.overshot:
            event = TimelineEvent("kv-landed", landing.reached_ns, self._name)
            self._tell(Timeline(request, (event,)))
            self._settled(request)

    def _settled(self, request: str) -> None:
        """The prefill worker has done its part, or never will."""
        self._tell(PrefillDone(request, 0))

    def _note(self, request: str, events: tuple[TimelineEvent, ...]) -> None:
        self._tell(Timeline(self._receiving.label(request) or request, events))

    def _tell(self, message: Message) -> None:
        """Where a plain `vllm serve` runs this, there is nobody to be told."""
        if self._owner is not None:
            self._owner.send(message)

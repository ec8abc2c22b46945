"""What replays run against: architectures that are started for it, or servers that are there."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from relevo.bench.architectures import Architecture, EngineOptions
from relevo.bench.client import Client, random_prompt
from relevo.bench.energy import Energy, measured_energy
from relevo.bench.load import Target
from relevo.bench.load_process import run_load
from relevo.bench.metrics import validity
from relevo.bench.processes import cpu_seconds, duplicated_mib, use_of
from relevo.bench.report import Replay
from relevo.bench.trace import Trace
from relevo.launch.local import LocalDeployment
from relevo.launch.model_source import ModelSource

WARM_TOKENS = 8


@dataclass(frozen=True)
class Bench:
    """The same for all subjects of a comparison. `model`: what is started; `client_cores`: the load
    generator's, none: it shares with everyone; `salt`: of this comparison's prompts, so that
    servers that outlive it know none of the next one's."""

    model: ModelSource | None
    options: EngineOptions
    vocabulary: int
    salt: int
    client_cores: tuple[int, ...] = ()
    power_csv: Path | None = None


@dataclass
class Running:
    """A subject that answers. `pids`: of its processes by name, where they are known."""

    name: str
    target: Target
    bench: Bench
    pids: dict[str, int] = field(default_factory=dict)

    def warm(self, prompt_tokens: int, requests: int, seed: int) -> None:
        """So many requests at once, of about this length. Raises RequestFailed."""

        async def ask() -> None:
            client = Client(self.target.url, self.target.model)
            try:
                prompts = (
                    random_prompt(prompt_tokens, self.seed(seed + i), self.target.vocabulary)
                    for i in range(requests)
                )
                await asyncio.gather(*(client.stream(p, WARM_TOKENS) for p in prompts))
            finally:
                await client.close()

        asyncio.run(ask())

    def seed(self, number: int) -> int:
        """Of a prompt that is not the trace's."""
        return self.bench.salt * 1_000_000 + number

    def replay(
        self, trace: Trace, round: int, load: float, salt: int, kill: Kill | None = None
    ) -> Replay:
        """`salt`: another for each replay whose prompts have to be new to the server."""
        before = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        with measured_energy(self.bench.power_csv) as energy:

            def poll(elapsed_s: float) -> None:
                energy.read()
                if kill is not None:
                    kill.poll(elapsed_s)

            run = run_load(
                self.target, trace, self.bench.client_cores, self.bench.salt + salt, poll
            )
        alive = {n: pid for n, pid in self.pids.items() if kill is None or n != kill.name}
        model = self.bench.model
        files = (model.path, model.cache) if model else ()
        return Replay(
            architecture=self.name,
            round=round,
            load=load,
            invalid=tuple(validity(run, closed=trace.concurrency is not None)),
            run=run,
            digest=run.digest,
            processes=tuple(use_of(name, pid, before[name]) for name, pid in alive.items()),
            duplicated_mib=duplicated_mib(alive.values(), files),
            energy=energy.result() if self.pids else Energy(None, "unavailable (not started here)"),
        )


@dataclass
class Kill:
    """Ends the process `after_s` into a replay, as a crash would."""

    name: str
    pid: int
    after_s: float
    done_ns: int | None = None

    def poll(self, elapsed_s: float) -> None:
        if self.done_ns is None and elapsed_s >= self.after_s:
            os.kill(self.pid, signal.SIGKILL)
            self.done_ns = time.monotonic_ns()


class Subject(Protocol):
    """`side`: colocated or disaggregated. `can_lose`: it has a worker whose loss others bear."""

    @property
    def can_lose(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def side(self) -> str: ...
    def settings(self) -> dict[str, str | int]: ...
    def started(self, bench: Bench) -> AbstractContextManager[Running]: ...


@dataclass(frozen=True)
class Deployed:
    """Started for a replay, and stopped after it."""

    architecture: Architecture
    name: str
    side: str

    @staticmethod
    def of(architecture: Architecture) -> Deployed:
        return Deployed(architecture, architecture.name, architecture.side)

    @property
    def can_lose(self) -> bool:
        return bool(self.architecture.prefill) or self.architecture.mixed > 1

    def settings(self) -> dict[str, str | int]:
        return self.architecture.settings() | {"side": self.side}

    @contextmanager
    def started(self, bench: Bench) -> Iterator[Running]:
        assert bench.model is not None
        config = bench.options.deployment(bench.model, self.architecture)
        with LocalDeployment(config) as deployment:
            target = Target(deployment.url, bench.model.name, bench.vocabulary)
            pids = {process.name: process.pid for process in deployment.processes}
            yield Running(self.name, target, bench, pids)


@dataclass(frozen=True)
class Endpoint:
    """A server that someone else has started."""

    name: str
    side: str
    url: str
    model: str
    can_lose: bool = False

    def settings(self) -> dict[str, str | int]:
        return {"side": self.side, "url": self.url, "model": self.model}

    @contextmanager
    def started(self, bench: Bench) -> Iterator[Running]:
        yield Running(self.name, Target(self.url, self.model, bench.vocabulary), bench)


def workers_of(running: Running) -> Sequence[str]:
    return [name for name in running.pids if name != "router"]

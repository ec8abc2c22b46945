"""A deployment on this machine: one router and its workers, supervised."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from relevo.errors import ConfigError, UnsupportedModel, WorkerLost
from relevo.launch.cores import own_cores
from relevo.launch.model_source import ModelSource
from relevo.launch.process import Process
from relevo.types import Role

START_DEADLINE_S = 600.0  # the first start of a large model fuses its weights
STOP_DEADLINE_S = 5.0
Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class DeploymentConfig:
    """`worker_arguments` are handed to every worker as they are; `worker_cores` says which each
    runs on, in the order of `roles` (none: this process's are dealt out)."""

    model: ModelSource
    prefill: int = 1
    decode: int = 1
    mixed: int = 0
    transport: str = "local"
    host: str = "127.0.0.1"
    port: int = 0
    worker_cores: tuple[tuple[int, ...], ...] = ()
    worker_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("prefill", "decode", "mixed"):
            if getattr(self, key) < 0:
                raise ConfigError(key, f"{getattr(self, key)} is below 0")
        if self.decode + self.mixed == 0:
            raise ConfigError("decode", "at least one decode or mixed worker must generate")
        if self.worker_cores and len(self.worker_cores) != len(self.roles()):
            raise ConfigError("worker_cores", "must say which cores for each worker")

    def roles(self) -> list[Role]:
        return (
            [Role.PREFILL] * self.prefill + [Role.DECODE] * self.decode + [Role.MIXED] * self.mixed
        )


class LocalDeployment:
    """A context manager: started on entry, every process ended on exit."""

    def __init__(
        self, config: DeploymentConfig, progress: Progress = lambda who, what: None
    ) -> None:
        self.config = config
        self._progress = progress
        self.processes: list[Process] = []
        self.url = ""

    def __enter__(self) -> LocalDeployment:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        config = self.config
        router = Process("router", _router_arguments(config))
        self.processes.append(router)
        deadline = time.monotonic() + START_DEADLINE_S
        ready = self._until_ready([router], deadline)[router.name]
        self.url = ready["url"]
        roles = config.roles()
        workers: list[Process] = []
        dealt = config.worker_cores or own_cores(len(roles))
        for index, (role, cores) in enumerate(zip(roles, dealt, strict=True)):
            name = f"{role}-{roles[:index].count(role)}"
            arguments = _worker_arguments(config, name, role, ready["control"], cores)
            workers.append(Process(name, arguments))
            self.processes.append(workers[-1])
        self._until_ready(workers, deadline)

    def _until_ready(self, wanted: list[Process], deadline: float) -> dict[str, dict[str, Any]]:
        """What each said when it was ready. Raises what the first to fail failed of."""
        ready: dict[str, dict[str, Any]] = {}
        while len(ready) < len(wanted):
            if time.monotonic() > deadline:
                missing = ", ".join(p.name for p in wanted if p.name not in ready)
                raise WorkerLost(f"{missing}: not ready within {START_DEADLINE_S:.0f} s")
            self._wait(0.2)
            for process in self.processes:
                for line in process.lines():
                    state = line.pop("state")
                    if state == "ready" and process in wanted:
                        ready[process.name] = line
                    elif state == "failed":
                        raise _failure(process.name, line)
                    self._progress(process.name, line.get("what", state))
                if process.exit_code() is not None:
                    raise WorkerLost(process.describe_exit())
        return ready

    def _wait(self, timeout_s: float) -> None:
        select.select([p.status_fd for p in self.processes], [], [], timeout_s)

    def watch(self) -> str:
        """Sleeps until one of the processes has ended, and says which."""
        while True:
            for process in self.processes:
                failed = [line for line in process.lines() if line["state"] == "failed"]
                if failed:
                    return f"{process.name}: {failed[0]['what']}"
                if process.exit_code() is not None:
                    return process.describe_exit()
            # A process's pipe reads as ready when it ends.
            select.select([p.status_fd for p in self.processes], [], [], 60)

    def stop(self) -> None:
        """Ends every process, by force where it does not end by itself. Idempotent."""
        handler = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave any behind
        deadline = time.monotonic() + STOP_DEADLINE_S
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(deadline)
        self.processes = []
        signal.signal(signal.SIGINT, handler)


def _failure(who: str, line: dict[str, Any]) -> Exception:
    """The child's error as our own, so that the caller sees one kind of each."""
    message = f"{who}: {line['what']}"
    if line.get("kind") == "ConfigError":
        return ConfigError(line["key"], line["what"])
    if line.get("kind") == "UnsupportedModel":
        return UnsupportedModel(line["what"])
    return WorkerLost(message)


def _router_arguments(config: DeploymentConfig) -> list[str]:
    return [
        "router",
        str(config.model.path),
        "--model-name", config.model.name,
        "--host", config.host,
        "--port", str(config.port),
    ]  # fmt: skip


def _worker_arguments(
    config: DeploymentConfig, name: str, role: Role, control: str, cores: tuple[int, ...]
) -> list[str]:
    return [
        "worker",
        str(Path(config.model.path)),
        "--model-name", config.model.name,
        "--name", name,
        "--role", role.value,
        "--router", control,
        "--transport", config.transport,
        "--cores", ",".join(map(str, cores)),
        *config.worker_arguments,
    ]  # fmt: skip

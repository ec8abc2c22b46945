"""What is compared: ways of putting a machine's devices (on CPU: runs of cores) to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relevo.errors import ConfigError
from relevo.launch.cores import deal
from relevo.launch.local import DeploymentConfig
from relevo.launch.model_source import ModelSource

COLOCATED, DISAGGREGATED = "colocated", "disaggregated"
FORMS = ("replicas-whole", "replicas-chunked", "all-devices-whole", "all-devices-chunked",
         "disaggregated")  # fmt: skip
WHOLE = 1 << 20
CHUNKS = (128, 256, 512)
LOCAL_PREFILL = (32, 256)
DEFAULT_LOCAL_PREFILL = 32
VLLM_WHOLE = 8192
VLLM_SEQUENCES = 256


@dataclass(frozen=True)
class Devices:
    """The cores of each; all architectures get all of them."""

    cores: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(count: int, cores: Sequence[int]) -> Devices:
        """Raises ConfigError where there are fewer cores than devices."""
        if not 1 <= count <= len(cores):
            raise ConfigError("devices", f"{count} is not between 1 and {len(cores)}, the cores")
        return Devices(tuple(deal(cores, count)))

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(core for device in self.cores for core in device)


@dataclass(frozen=True)
class Architecture:
    """`worker_cores`: of prefill, decode and mixed workers, in this order. `chunk`: most tokens of
    a step (WHOLE: prompts are computed in one). `devices`: how many there are, whose KV memory the
    workers share. `faults` is for rehearsals."""

    form: str
    prefill: int
    decode: int
    mixed: int
    worker_cores: tuple[tuple[int, ...], ...]
    devices: int
    chunk: int = WHOLE
    local_prefill: int = DEFAULT_LOCAL_PREFILL
    faults: str = ""

    @property
    def side(self) -> str:
        return DISAGGREGATED if self.prefill else COLOCATED

    @property
    def name(self) -> str:
        if self.side == COLOCATED:
            return self.form if self.chunk == WHOLE else f"{self.form}-{self.chunk}"
        cores = [len(c) for c in self.worker_cores]
        name = f"{self.form}-{self.prefill}:{self.decode}"
        if len(set(cores)) > 1:
            name += f"-cores-{cores[0]}:{cores[-1]}"
        if self.local_prefill != DEFAULT_LOCAL_PREFILL:
            name += f"-local-{self.local_prefill}"
        return name

    def settings(self) -> dict[str, str | int]:
        """For the report."""
        return {
            "side": self.side,
            "prefill_workers": self.prefill,
            "decode_workers": self.decode,
            "mixed_workers": self.mixed,
            "worker_cores": " ".join(",".join(map(str, cores)) for cores in self.worker_cores),
            "chunk_tokens": "whole prompts" if self.chunk == WHOLE else self.chunk,
            "local_prefill_tokens": self.local_prefill if self.prefill else "",
            "faults": self.faults,
        }


@dataclass(frozen=True)
class EngineOptions:
    """The same for every architecture. `kv_mib`: KV memory per device; `handoff_faults`: of
    disaggregated workers, such as a slow link."""

    engine: str = "embedded"
    vllm_arguments: str = ""
    dtype: str = "bfloat16"
    kv_mib: int = 200
    transport: str = "local"
    handoff_faults: str = ""

    def deployment(self, model: ModelSource, architecture: Architecture) -> DeploymentConfig:
        arguments = ["--engine", self.engine, "--dtype", self.dtype]
        share = self.kv_mib * architecture.devices // len(architecture.worker_cores)
        arguments += ["--kv-memory", str(share)]
        arguments += ["--local-prefill-tokens", str(architecture.local_prefill)]
        if self.engine == "vllm":
            chunk = min(architecture.chunk, VLLM_WHOLE)
            # vLLM wants no more sequences than tokens in a step; what is given last counts.
            ours = f"--max-num-seqs {min(chunk, VLLM_SEQUENCES)} --max-num-batched-tokens {chunk}"
            ours = f"{ours} {self.vllm_arguments}"
            arguments.append(f"--vllm-arguments={ours.strip()}")
        else:
            arguments += ["--step-tokens", str(architecture.chunk)]
        faults = architecture.faults or (self.handoff_faults if architecture.prefill else "")
        if faults:
            arguments += ["--faults", faults]
        return DeploymentConfig(
            model=model,
            prefill=architecture.prefill,
            decode=architecture.decode,
            mixed=architecture.mixed,
            transport=self.transport,
            worker_cores=architecture.worker_cores,
            worker_arguments=tuple(arguments),
        )


def replicas(devices: Devices, chunk: int = WHOLE) -> Architecture:
    form = "replicas-whole" if chunk == WHOLE else "replicas-chunked"
    count = len(devices.cores)
    return Architecture(form, 0, 0, count, devices.cores, count, chunk)


def all_devices(devices: Devices, chunk: int = WHOLE) -> Architecture:
    form = "all-devices-whole" if chunk == WHOLE else "all-devices-chunked"
    count = len(devices.cores)
    return Architecture(form, 0, 0, 1, (devices.all,), count, chunk)


def disaggregated(devices: Devices, prefill: int = 1) -> Architecture:
    """`prefill` devices for prefill, the rest for decode; on one device both workers share it."""
    count = len(devices.cores)
    if count == 1:
        return Architecture("disaggregated", 1, 1, 0, devices.cores * 2, 1)
    return Architecture("disaggregated", prefill, count - prefill, 0, devices.cores, count)


def candidates(devices: Devices, form: str, chunks: Sequence[int]) -> list[Architecture]:
    """What tuning tries for a form. Raises ConfigError for a form that does not exist."""
    if form == "replicas-whole":
        return [replicas(devices)]
    if form == "replicas-chunked":
        return [replicas(devices, chunk) for chunk in chunks]
    if form == "all-devices-whole":
        return [all_devices(devices)]
    if form == "all-devices-chunked":
        return [all_devices(devices, chunk) for chunk in chunks]
    if form != "disaggregated":
        raise ConfigError("architectures", f"{form!r} is none of {', '.join(FORMS)}")
    splits = [disaggregated(devices, p) for p in range(1, max(2, len(devices.cores)))]
    return splits + _uneven(devices)


def _uneven(devices: Devices) -> list[Architecture]:
    """One prefill and one decode worker whose threads are not as many: where two devices have
    cores to shift."""
    if len(devices.cores) != 2:
        return []
    cores = devices.all
    shares = {max(1, len(cores) // 4), max(1, len(cores) * 3 // 4)} - {len(cores) // 2, len(cores)}
    return [
        Architecture("disaggregated", 1, 1, 0, (cores[:share], cores[share:]), 2)
        for share in sorted(shares)
    ]


def threshold_variants(best: Architecture) -> list[Architecture]:
    """Of a disaggregated form: which prompts decode workers compute themselves."""
    return [replace(best, local_prefill=n) for n in LOCAL_PREFILL if n != best.local_prefill]

"""Memory and processor time of processes and their children."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil


class ProcessUse(msgspec.Struct, frozen=True):
    """With its children. `pss_mib`: proportional set size, so that shared pages count once in the
    sum over processes; `peak_mib`: the most that was resident, shared pages counted in each."""

    name: str
    pss_mib: float
    peak_mib: float
    cpu_s: float


def family(pid: int) -> Iterator[psutil.Process]:
    """The process and all below it that are there now."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        yield parent
        yield from parent.children(recursive=True)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads and children, also of those that have ended."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
            if process.pid == pid:
                total += times.children_user + times.children_system
    return total


def pss_mib(pid: int) -> float:
    total = 0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return round(total / 2**20, 1)


def use_of(name: str, pid: int, cpu_before_s: float) -> ProcessUse:
    peak = sum(_peak_kib(process.pid) for process in family(pid))
    used_s = max(0.0, cpu_seconds(pid) - cpu_before_s)  # it may have died
    return ProcessUse(name, pss_mib(pid), round(peak / 1024, 1), round(used_s, 3))


def _peak_kib(pid: int) -> int:
    """0 where the process has gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def duplicated_mib(pids: Iterable[int], model_files: Iterable[Path]) -> float | None:
    """What mappings of the model's files take beyond one copy: their proportional set sizes, less
    the largest that one process has resident. None where no process maps any."""
    roots = tuple(str(path.resolve()) for path in model_files)
    share = largest = 0
    for pid in pids:
        for process in family(pid):
            with suppress(psutil.NoSuchProcess):
                maps = [m for m in process.memory_maps() if m.path.startswith(roots)]
                share += sum(m.pss for m in maps)
                largest = max(largest, sum(m.rss for m in maps))
    return round(max(0, share - largest) / 2**20, 1) if largest else None

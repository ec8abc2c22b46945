"""What machine a figure comes from."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def describe_machine() -> dict[str, str | int]:
    """Processor, cores this process may use, memory, kernel and library versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "relevo": version("relevo"),
    }

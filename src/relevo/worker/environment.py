"""What has to be set before torch is imported: the cores that its threads inherit, and how much
its libraries cache."""

from __future__ import annotations

import ctypes
import os
import signal

from relevo.errors import ConfigError

# oneDNN and torch's wrapper of it keep a compiled kernel of about 0.7 MiB per shape, 1,024 of each
# by default. Steps are padded to few shapes (see runner.py), so a small cache loses nothing.
_CACHED_KERNELS = "32"
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """The kernel ends this process when the thread that made it ends, however that ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def prepare_process(cores: str) -> int:
    """Pins this process to `cores` ("0,1"; empty: as it is). Returns how many it has."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _CACHED_KERNELS)
    os.environ.setdefault("LRU_CACHE_CAPACITY", _CACHED_KERNELS)
    if cores:
        try:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
        except (ValueError, OSError) as error:
            raise ConfigError("cores", f"{cores!r}: {error}") from error
    return len(os.sched_getaffinity(0))

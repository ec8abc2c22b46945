"""`relevo doctor`: what this machine offers, what is missing, and a self-test of each transport."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relevo.errors import RelevoError
from relevo.transfer.engine import (
    TRANSPORTS,
    Copy,
    LayerMap,
    PagePair,
    Push,
    TransferEngine,
    TransferEvent,
)
from relevo.transfer.libfabric import libfabric_version, providers

PAGE, PAGES, LAYERS = 12 << 10, 64, 4
SELF_TEST_S = 10.0


@dataclass(frozen=True)
class Finding:
    """One line of the report. `ok` None is neither good nor bad."""

    what: str
    found: str
    ok: bool | None = None


def run_doctor(transport: str) -> int:
    """Prints what is found. 1 if something that `transport` needs is missing."""
    failed = False
    for finding in examine():
        mark = {True: "ok", False: "MISSING", None: "-"}[finding.ok]
        print(f"{mark:>8}  {finding.what}: {finding.found}", flush=True)
    for name in TRANSPORTS:
        problem, took_ms = self_test(name)
        needed = name == transport
        failed |= needed and problem is not None
        found = f"{PAGES * LAYERS} pages landed in {took_ms:.1f} ms" if problem is None else problem
        mark = "ok" if problem is None else ("MISSING" if needed else "-")
        print(f"{mark:>8}  transport {name}: {found}", flush=True)
    print(f"--transport {transport} {'does not work' if failed else 'works'} on this machine")
    return 1 if failed else 0


def examine() -> Iterator[Finding]:
    """Facts about the machine, the transports' own aside."""
    cores = sorted(os.sched_getaffinity(0))
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    yield Finding("cores", f"{len(cores)} usable, {max(1, len(nodes))} NUMA node(s)")
    yield Finding("kernel", platform.release())
    version = libfabric_version()
    if version is None:
        yield Finding("libfabric", "not built in: install libfabric-dev and run set-up again")
    else:
        yield Finding("libfabric", f"{version}, providers {', '.join(providers())}", True)
    devices = _names("/sys/class/infiniband")
    yield Finding("RDMA devices", ", ".join(devices) or "none")
    yield Finding("locked memory", _limit(resource.RLIMIT_MEMLOCK, 1 << 20, "MiB"))
    yield Finding("open files", _limit(resource.RLIMIT_NOFILE, 1, ""))
    yield Finding("huge pages", _huge_pages())
    yield Finding("GPUs", _gpus())
    yield Finding("energy counters", _energy())


def _names(folder: str) -> list[str]:
    path = Path(folder)
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def _limit(which: int, unit: int, name: str) -> str:
    soft, _ = resource.getrlimit(which)
    return "no limit" if soft == resource.RLIM_INFINITY else f"{soft // unit} {name}".rstrip()


def _huge_pages() -> str:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next((line.split()[1] for line in lines if line.startswith("HugePages_Total")), "0")
    mode = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    shared = mode.read_text().partition("[")[2].partition("]")[0] if mode.exists() else "unknown"
    return f"{total} reserved; transparent ones for shared memory: {shared}"


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none (no nvidia-smi)"
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi fails: {error}"
    return done.stdout.strip() or f"nvidia-smi fails: {done.stderr.strip()}"


def _energy() -> str:
    counters = sorted(Path("/sys/class/powercap").glob("intel-rapl:*/energy_uj"))
    if not counters:
        return "unavailable: no RAPL counters here"
    if not os.access(counters[0], os.R_OK):
        return f"unavailable: {counters[0]} is readable by root only"
    return f"{len(counters)} RAPL counters"


def self_test(transport: str) -> tuple[str | None, float]:
    """(what is wrong or None, ms): pages pushed layer by layer from one engine to another."""
    try:
        source, target = TransferEngine(transport), TransferEngine(transport)
    except RelevoError as error:
        return str(error), 0.0
    size = PAGE * PAGES * LAYERS
    ours, theirs = source.allocate("self-test", size), target.allocate("self-test", size)
    ours[:] = 1 + (ours.cumsum(dtype="uint64") % 251).astype("uint8")
    source.start()
    target.start()
    try:
        link = target.expect_link()
        source.connect(link, target.address(), _layer_maps(), SELF_TEST_S)
        problem = _wait_up(source)
        if problem is not None:
            return problem, 0.0
        target.arm(0, 0, PAGES * LAYERS)
        begin = time.monotonic()
        _push_all(source, link)
        while not target.poll_counters():
            if time.monotonic() - begin > SELF_TEST_S:
                return f"pages did not land within {SELF_TEST_S:.0f} s", 0.0
        took_ms = (time.monotonic() - begin) * 1e3
        return (None if (ours == theirs).all() else "other bytes landed than were sent"), took_ms
    finally:
        source.stop()
        target.stop()


def _layer_maps() -> list[LayerMap]:
    offsets = [layer * PAGES * PAGE for layer in range(LAYERS)]
    return [LayerMap(0, 0, at, PAGE, at, PAGE, [Copy(0, 0, PAGE)]) for at in offsets]


def _wait_up(source: TransferEngine) -> str | None:
    deadline = time.monotonic() + SELF_TEST_S
    while time.monotonic() < deadline:
        for event in source.poll_events():
            if event.kind is TransferEvent.Kind.LINK_UP:
                return None
            return event.error
        time.sleep(0.001)
    return "no link"


def _push_all(source: TransferEngine, link: int) -> None:
    source.open_handoff(1)
    pairs = [PagePair(page, page) for page in range(PAGES)]
    source.open_step([Push(1, link, 0, 0, [], pairs, True)])
    for _ in range(LAYERS):
        source.bump()
    source.end_step(True)

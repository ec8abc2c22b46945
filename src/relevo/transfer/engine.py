"""The transfer engine: regions, links, hand-offs and steps over one driver."""

from __future__ import annotations

import errno
import mmap
import secrets
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relevo.errors import ConfigError
from relevo.transfer import _transfer
from relevo.transfer._transfer import (
    GENERATIONS,
    MAX_PARTS,
    SLOTS,
    Copy,
    CounterEvent,
    Faults,
    LayerMap,
    MemoryFile,
    PagePair,
    Push,
    TransferEvent,
)

__all__ = [
    "GENERATIONS", "MAX_PARTS", "SLOTS", "TRANSPORTS", "Copy", "CounterEvent", "Faults", "LayerMap",
    "MemoryFile", "PagePair", "Push", "TransferEngine", "TransferEvent",
]  # fmt: skip

TRANSPORTS = ("local", "tcp")
PAGE_BYTES = mmap.PAGESIZE


class TransferEngine:
    """Wraps the native engine of one worker. Every method may be called from any thread, `bump`,
    `open_step` and `end_step` from the engine loop's only. `add_pushes` joins pushes to the step
    that is open, which the caller keeps from ending meanwhile; with nothing layered, at any time.

    Memory comes from `allocate` or `adopt`, before `start`; it is what peers write into and read
    from. With `faults` its writes misbehave.
    """

    def __init__(
        self, transport: str, host: str = "127.0.0.1", faults: Faults | None = None
    ) -> None:
        if transport not in TRANSPORTS:
            raise ConfigError("transport", f"{transport!r} is none of {', '.join(TRANSPORTS)}")
        self.transport = transport
        self._native = _transfer.NativeEngine(transport, host, faults)
        self._memory: list[npt.NDArray[np.uint8]] = []
        self.bump = self._native.bump
        self.end_step = self._native.end_step
        self.open_step = self._native.open_step
        self.add_pushes = self._native.add_pushes
        self.arm = self._native.arm
        self.disarm = self._native.disarm
        self.counted = self._native.counted
        self.poll_counters = self._native.poll_counters
        self.poll_events = self._native.poll_events
        self.open_handoff = self._native.open_handoff
        self.withdraw = self._native.withdraw
        self.close_link = self._native.close_link
        self.statistics = self._native.statistics
        self.event_fd = self._native.event_fd
        self.counter_fd = self._native.counter_fd

    def allocate(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        """A new region backed by an anonymous memory file; regions are numbered from 0."""
        return self._register(MemoryFile(name, size))

    def adopt(self, name: str, spans: Sequence[tuple[int, int]]) -> list[int]:
        """A new region in the place of memory of this process that someone else has allocated:
        `spans` are (address, bytes). Contents stay; nobody may write there meanwhile. Returns where
        each span begins in the region, in bytes."""
        moves: list[tuple[int, int, int]] = []  # offset, address, length: whole pages
        starts: dict[int, int] = {}  # by address
        size = end = 0
        for address, length in sorted(spans):
            first = max(address - address % PAGE_BYTES, end)  # a page that two share moves once
            end = max(end, -(-(address + length) // PAGE_BYTES) * PAGE_BYTES)
            starts[address] = size + address - first
            if end > first:
                moves.append((size, first, end - first))
                size += end - first
        file = MemoryFile(name, size)
        for move in moves:
            file.map_over(*move)
        self._register(file)
        return [starts[address] for address, _ in spans]

    def _register(self, file: MemoryFile) -> npt.NDArray[np.uint8]:
        self._native.register_region(len(self._memory), file)
        self._memory.append(file.array())
        return self._memory[-1]

    def memory(self, region: int) -> npt.NDArray[np.uint8]:
        """uint8 [size of the region]."""
        return self._memory[region]

    @property
    def in_flight(self) -> int:
        """Writes posted and not over."""
        return self._native.in_flight

    def errors(self) -> dict[str, int]:
        """Failed writes by what failed and of what, such as `write:EIO`."""
        return {
            f"{operation}:{errno.errorcode.get(abs(code), str(code))}": count
            for operation, code, count in self._native.errors()
        }

    def start(self) -> None:
        self._native.start()

    def stop(self) -> None:
        self._native.stop()

    def address(self) -> bytes:
        """What a peer needs in order to connect; opaque."""
        return self._native.address()

    def expect_link(self) -> int:
        """Draws a link id and lets the peer that is told of it connect, once."""
        link = secrets.randbits(63)
        self._native.expect(link)
        return link

    def connect(self, link: int, address: bytes, layers: list[LayerMap], timeout_s: float) -> None:
        """Connects to a peer that expects `link`; an event says how it went."""
        deadline = time.monotonic_ns() + int(timeout_s * 1e9)
        self._native.connect(link, address, layers, deadline)

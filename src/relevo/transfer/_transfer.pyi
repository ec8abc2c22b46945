from typing import ClassVar

import numpy as np
import numpy.typing as npt

SLOTS: int
GENERATIONS: int
MAX_PARTS: int

def libfabric_version() -> str: ...
def libfabric_providers() -> list[str]: ...
def monotonic_ns() -> int: ...

class MemoryFile:
    def __init__(self, name: str, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    def array(self) -> npt.NDArray[np.uint8]: ...

class PagePair:
    def __init__(self, source: int, destination: int) -> None: ...
    @property
    def source(self) -> int: ...
    @property
    def destination(self) -> int: ...

class Copy:
    def __init__(self, source: int, destination: int, length: int) -> None: ...

class LayerMap:
    def __init__(
        self,
        source_region: int,
        destination_region: int,
        source_base: int,
        source_stride: int,
        destination_base: int,
        destination_stride: int,
        copies: list[Copy],
    ) -> None: ...

class Push:
    def __init__(
        self,
        handoff: int,
        link: int,
        slot: int,
        generation: int,
        ready: list[PagePair],
        layered: list[PagePair],
        last: bool,
    ) -> None: ...

class Faults:
    def __init__(
        self,
        seed: int,
        delay_us: int,
        error: float,
        stall: float,
        cut: float,
        corrupt: float,
    ) -> None: ...

class CounterEvent:
    slot: int
    generation: int
    reached_ns: int
    overshot: bool

class TransferEvent:
    class Kind:
        LINK_UP: ClassVar[TransferEvent.Kind]
        LINK_DOWN: ClassVar[TransferEvent.Kind]
        LINK_CLOSED: ClassVar[TransferEvent.Kind]
        PUSHED: ClassVar[TransferEvent.Kind]
        DRAINED: ClassVar[TransferEvent.Kind]
        FAILED: ClassVar[TransferEvent.Kind]

    kind: Kind
    link: int
    handoff: int
    step: int
    at_ns: int
    writes: int
    parts: int
    bytes: int
    last: bool
    computed_ns: list[int]
    posted_ns: list[int]
    error: str

class NativeEngine:
    def __init__(self, driver: str, host: str, faults: Faults | None) -> None: ...
    def register_region(self, id: int, file: MemoryFile) -> None: ...
    def address(self) -> bytes: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    @property
    def event_fd(self) -> int: ...
    @property
    def counter_fd(self) -> int: ...
    def arm(self, slot: int, generation: int, expected: int) -> bool: ...
    def disarm(self, slot: int) -> None: ...
    def counted(self, slot: int) -> int: ...
    def poll_counters(self) -> list[CounterEvent]: ...
    def expect(self, link: int) -> None: ...
    def connect(
        self, link: int, address: bytes, layers: list[LayerMap], deadline_ns: int
    ) -> None: ...
    def close_link(self, link: int) -> None: ...
    def open_handoff(self, handoff: int) -> None: ...
    def withdraw(self, handoff: int) -> None: ...
    def open_step(self, pushes: list[Push]) -> int: ...
    def bump(self) -> None: ...
    def end_step(self, commit: bool) -> None: ...
    def poll_events(self) -> list[TransferEvent]: ...
    def statistics(self) -> dict[str, int]: ...
    @property
    def in_flight(self) -> int: ...
    def errors(self) -> list[tuple[str, int, int]]: ...

"""Faults on purpose: what `--faults` takes, so that users can rehearse failures."""

from __future__ import annotations

from typing import NamedTuple

from relevo.errors import ConfigError
from relevo.transfer.engine import Faults
from relevo.wire.unreliable import ControlFaults

_OF_WRITES = ("error", "stall", "cut", "corrupt")
_AMOUNTS = ("seed", "delay", "rate")  # the others are shares
_OF_MESSAGES = ("lose", "repeat", "late")
_EXAMPLE = "seed=1,delay=2000,error=0.01,cut=0.0001,lose=0.01"


class WorkerFaults(NamedTuple):
    """None, and 0, where all goes well. `slow`: each step of the engine takes that share longer."""

    writes: Faults | None = None
    messages: ControlFaults | None = None
    slow: float = 0.0


def parse_faults(spec: str) -> WorkerFaults:
    """`key=value` pairs. `seed`; `delay`, the longest of a write, in µs; `rate`, the pace of the
    link, in MB/s; per write the probabilities of an `error`, of a `stall` of 20 ms, of a `cut` of
    its link, and that it carries other bytes (`corrupt`); per control message between workers those
    that it is lost (`lose`), said twice (`repeat`) or up to a second `late`; `slow`, the share by
    which the engine's steps take longer. Raises ConfigError."""
    if not spec:
        return WorkerFaults()
    values = dict.fromkeys((*_AMOUNTS, *_OF_WRITES, *_OF_MESSAGES, "slow"), 0.0)
    for part in spec.split(","):
        key, _, value = part.partition("=")
        if key not in values:
            raise ConfigError("faults", f"{key!r} is none of {', '.join(values)}; try {_EXAMPLE}")
        try:
            values[key] = float(value)
        except ValueError as error:
            raise ConfigError("faults", f"{part!r} has no number; try {_EXAMPLE}") from error
        limit = 1e9 if key in _AMOUNTS else 1.0
        if not 0 <= values[key] <= limit:
            raise ConfigError("faults", f"{part!r} is not between 0 and {limit:g}")
    seed = int(values["seed"])
    pace = int(values["rate"] * 1e6)
    writes = Faults(seed, int(values["delay"]), pace, *(values[key] for key in _OF_WRITES))
    messages = ControlFaults(seed, *(values[key] for key in _OF_MESSAGES))
    return WorkerFaults(writes, messages, values["slow"])

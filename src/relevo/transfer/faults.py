"""Faults on purpose: what `--faults` takes, so that users can rehearse failures."""

from __future__ import annotations

from relevo.errors import ConfigError
from relevo.transfer._transfer import Faults

_PROBABILITIES = ("error", "stall", "cut")
_EXAMPLE = "seed=1,delay=2000,error=0.01,stall=0.001,cut=0.0001"


def parse_faults(spec: str) -> Faults:
    """`key=value` pairs: seed; delay, the longest of a write, in µs; and per write the
    probabilities of an error, of a stall of 20 ms, and of a cut of its link. Raises ConfigError."""
    values = {"seed": 0.0, "delay": 0.0, **dict.fromkeys(_PROBABILITIES, 0.0)}
    for part in spec.split(","):
        key, _, value = part.partition("=")
        if key not in values:
            raise ConfigError("faults", f"{key!r} is none of {', '.join(values)}; try {_EXAMPLE}")
        try:
            values[key] = float(value)
        except ValueError as error:
            raise ConfigError("faults", f"{part!r} has no number; try {_EXAMPLE}") from error
        limit = 1.0 if key in _PROBABILITIES else 1e9
        if not 0 <= values[key] <= limit:
            raise ConfigError("faults", f"{part!r} is not between 0 and {limit:g}")
    return Faults(
        int(values["seed"]), int(values["delay"]), values["error"], values["stall"], values["cut"]
    )

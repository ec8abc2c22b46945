"""Energy of a run, from whatever measures it here: NVML (GPUs), RAPL (processor packages), or a
power meter's CSV. What is not there is None, never 0."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec

from relevo.errors import ConfigError

POWERCAP = Path("/sys/class/powercap")
LATEST_S = 2.0  # a meter that writes every so often has not written the run's end yet


class Energy(msgspec.Struct, frozen=True):
    """`joules` None: unavailable, and `source` says why."""

    joules: float | None
    source: str


class Meter(Protocol):
    """Started once, then read from time to time, at the latest before its counters wrap twice."""

    source: str

    def read(self) -> None: ...
    def joules(self) -> float: ...


class RaplMeter:
    """Counters of µJ that wrap at their range."""

    def __init__(self, root: Path = POWERCAP) -> None:
        # "psys" counts the packages again, with the rest of the board.
        self._packages = [
            path
            for path in sorted(root.glob("intel-rapl:*"))
            if path.name.count(":") == 1 and (path / "name").read_text().startswith("package")
        ]
        self._ranges = [_number(p / "max_energy_range_uj") for p in self._packages]
        self._last = [_number(p / "energy_uj") for p in self._packages]
        self._sum_uj = 0
        self.source = f"RAPL, {len(self._packages)} packages"

    def read(self) -> None:
        for index, package in enumerate(self._packages):
            now = _number(package / "energy_uj")
            # A counter below its last value has wrapped.
            self._sum_uj += (now - self._last[index]) % (self._ranges[index] + 1)
            self._last[index] = now

    def joules(self) -> float:
        return self._sum_uj / 1e6


def _number(path: Path) -> int:
    return int(path.read_text())


class NvmlMeter:
    """The total energy counters of all GPUs. Raises OSError where there are none."""

    def __init__(self) -> None:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
            self._first = self._total()
        except pynvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        self._last = self._first
        self.source = f"NVML, {len(self._gpus)} GPUs"

    def _total(self) -> int:
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self._gpus)

    def read(self) -> None:
        self._last = self._total()

    def joules(self) -> float:
        return (self._last - self._first) / 1e3


def meters() -> tuple[list[Meter], str]:
    """(those that are there, why the others are not)."""
    found: list[Meter] = []
    missing = []
    for name, make in (("NVML", NvmlMeter), ("RAPL", RaplMeter)):
        try:
            meter = make()
        except (OSError, ValueError) as error:
            missing.append(f"{name}: {error}")
            continue
        if meter.source.split(", ")[1].startswith("0 "):
            missing.append(f"{name}: none here")
        else:
            found.append(meter)
    return found, "; ".join(missing)


class EnergyReading:
    """Of one run. `result` is called after the `with` block."""

    def __init__(self, power_csv: Path | None) -> None:
        self._power_csv = power_csv
        self._found, self._missing = meters()
        self._begin_s = time.time()
        self._end_s = self._begin_s

    def read(self) -> None:
        for meter in self._found:
            meter.read()
        self._end_s = time.time()

    def result(self) -> Energy:
        if self._power_csv is not None:  # the meter has gone on writing meanwhile
            return meter_energy(read_power_csv(self._power_csv), self._begin_s, self._end_s)
        if not self._found:
            return Energy(None, f"unavailable ({self._missing})")
        sources = ", ".join(meter.source for meter in self._found)
        return Energy(round(sum(meter.joules() for meter in self._found), 3), sources)


@contextmanager
def measured_energy(power_csv: Path | None) -> Iterator[EnergyReading]:
    reading = EnergyReading(power_csv)
    try:
        yield reading
    finally:
        reading.read()


def read_power_csv(path: Path) -> list[tuple[float, float]]:
    """Columns `time_s` (seconds since 1970) and `watts`. Raises ConfigError with line and
    reason."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = []
            for row in reader:
                try:
                    rows.append((float(row["time_s"]), float(row["watts"])))
                except (KeyError, TypeError, ValueError) as error:
                    raise ConfigError(
                        "power-csv", f"{path}, line {reader.line_num}: needs time_s,watts"
                    ) from error
    except OSError as error:
        raise ConfigError("power-csv", f"{path}: {error.strerror}") from error
    return sorted(rows)


def meter_energy(power: list[tuple[float, float]], begin_s: float, end_s: float) -> Energy:
    """By the trapezoid rule, the power between readings being linear. Unavailable where the
    readings do not span the run, but for LATEST_S at its end."""
    if not power or power[0][0] > begin_s or power[-1][0] < end_s - LATEST_S:
        return Energy(None, "unavailable (the meter's readings do not span the run)")
    if power[-1][0] < end_s:
        power = [*power, (end_s, power[-1][1])]
    joules = 0.0
    for (t0, w0), (t1, w1) in pairwise(power):
        low, high = max(t0, begin_s), min(t1, end_s)
        if high > low:
            slope = (w1 - w0) / (t1 - t0)
            joules += (high - low) * (w0 + slope * ((low + high) / 2 - t0))
    return Energy(round(joules, 3), "power meter")

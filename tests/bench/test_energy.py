import os

import pytest

from relevo.bench.energy import EnergyReading, RaplMeter, meter_energy, meters, read_power_csv
from relevo.bench.processes import cpu_seconds, duplicated_mib, pss_mib, use_of
from relevo.errors import ConfigError


def package(root, number, value, most=1000):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text("psys\n" if number == 2 else f"package-{number}\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")


def test_rapl_adds_packages_and_survives_wraps(tmp_path):
    package(tmp_path, 0, 900)
    package(tmp_path, 1, 10)
    package(tmp_path, 2, 7)
    package(tmp_path, "0:0", 5)  # a part of package 0: not counted twice
    meter = RaplMeter(tmp_path)
    for first, second in ((950, 20), (100, 30), (999, 40)):  # the first wraps once: 151
        package(tmp_path, 0, first)
        package(tmp_path, 1, second)
        meter.read()
    assert meter.joules() == pytest.approx((50 + 151 + 899 + 30) / 1e6)


def test_what_is_not_there_is_unavailable_and_never_zero(monkeypatch, tmp_path):
    monkeypatch.setattr("relevo.bench.energy.POWERCAP", tmp_path)
    found, missing = meters()
    if not found:  # no GPU here
        assert "NVML" in missing
        assert "RAPL: none here" in missing
        energy = EnergyReading(None).result()
        assert energy.joules is None
        assert energy.source.startswith("unavailable")


def test_a_power_meters_readings_are_integrated_over_the_run(tmp_path):
    path = tmp_path / "power.csv"
    path.write_text("time_s,watts\n10,100\n20,200\n30,200\n")
    power = read_power_csv(path)
    assert meter_energy(power, 10, 30).joules == pytest.approx(1500 + 2000)
    assert meter_energy(power, 15, 25).joules == pytest.approx(875 + 1000)
    assert meter_energy(power, 25, 31).joules == pytest.approx(1200)  # the last reading holds
    assert meter_energy(power, 5, 25).joules is None
    assert meter_energy(power, 15, 35).joules is None


@pytest.mark.parametrize("text", ["time,watts\n1,2\n", "time_s,watts\n1,lots\n"])
def test_a_meters_file_that_cannot_be_read_is_refused(tmp_path, text):
    path = tmp_path / "power.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="line 2: needs time_s,watts"):
        read_power_csv(path)


def test_processes_are_measured_with_their_children():
    before = cpu_seconds(os.getpid())
    sum(i * i for i in range(2_000_000))
    use = use_of("me", os.getpid(), before)
    assert use.cpu_s > 0.01
    assert 5 < use.pss_mib <= use.peak_mib
    assert pss_mib(1 << 30) == 0.0  # nobody


def test_mapped_files_of_one_process_are_no_duplicates(tmp_path):
    import mmap

    path = tmp_path / "weights"
    path.write_bytes(b"1" * (4 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[::4096]
        assert duplicated_mib([os.getpid()], [tmp_path]) == 0.0
    assert duplicated_mib([os.getpid()], [tmp_path]) is None

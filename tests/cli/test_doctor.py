import pytest

from relevo.cli import doctor
from relevo.transfer import libfabric


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_the_transports_work_here(transport, capsys):
    assert doctor.run_doctor(transport) == 0
    said = capsys.readouterr().out
    assert f"ok  transport {transport}: 256 pages landed" in said
    assert "cores: " in said


def test_a_transport_that_is_needed_and_does_not_work_is_exit_code_1(monkeypatch, capsys):
    def broken(transport):
        return ("no such provider", 0.0) if transport == "tcp" else (None, 1.0)

    monkeypatch.setattr(doctor, "self_test", broken)
    assert doctor.run_doctor("local") == 0
    assert "MISSING" not in capsys.readouterr().out
    assert doctor.run_doctor("tcp") == 1
    assert "MISSING  transport tcp: no such provider" in capsys.readouterr().out


def test_libfabric_says_which_it_is():
    assert libfabric.libfabric_version()
    assert any("tcp" in name for name in libfabric.providers())

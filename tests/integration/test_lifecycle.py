"""Starting, stopping, and dying: nothing is left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from relevo.launch.child import PARENT
from relevo.launch.demo_model import DEMO_MODEL
from relevo.launch.process import Process

START_DEADLINE_S = 60
END_DEADLINE_S = 15


_started = []


@pytest.fixture(autouse=True)
def nothing_left_running():
    """Also after a test that fails."""
    yield
    while _started:
        serve = _started.pop()
        if serve.popen.poll() is None:
            serve.popen.kill()  # its children end with it
            serve.popen.wait()


class Serve:
    """`relevo serve` as a user runs it; `command`: or another that starts one."""

    def __init__(self, *arguments, model=DEMO_MODEL, command=None):
        _started.append(self)
        command = command or ["serve", str(model), "--port", "0", *arguments]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "relevo", *command],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said = ""

    def until(self, text):
        deadline = time.monotonic() + START_DEADLINE_S
        for line in self.popen.stderr:
            self.said += line
            if text in line:
                return self
            assert time.monotonic() < deadline, self.said
        raise AssertionError(f"ended without saying {text!r}: {self.said}")

    def family(self):
        """The supervisor and every process below it."""
        parent = psutil.Process(self.popen.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self):
        """Exit code, once it has ended."""
        _, rest = self.popen.communicate(timeout=END_DEADLINE_S)
        self.said += rest
        return self.popen.returncode


def wait_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=END_DEADLINE_S)
    assert not alive, f"left behind: {[p.cmdline() for p in alive]}"


def shared_files():
    return set(Path("/dev/shm").iterdir()) | set(Path("/tmp").glob("relevo*"))


def role_of(process):
    words = process.cmdline()
    if "worker" in words:
        return words[words.index("--role") + 1]
    return "router" if "router" in words else "supervisor"


def test_ctrl_c_ends_everything():
    before = shared_files()
    serve = Serve().until("serving")
    family = serve.family()
    assert sorted(map(role_of, family)) == ["decode", "prefill", "router", "supervisor"]
    serve.popen.send_signal(signal.SIGINT)
    assert serve.end() == 130
    wait_gone(family)
    assert shared_files() == before
    assert "Traceback" not in serve.said


def test_ctrl_c_while_loading_ends_everything():
    serve = Serve().until("router: ready")
    family = serve.family()
    serve.popen.send_signal(signal.SIGINT)
    assert serve.end() == 130
    wait_gone(family)


def test_what_a_worker_prints_is_no_result(capfd):
    process = Process("help", ["--help"])
    process.wait(time.monotonic() + END_DEADLINE_S)
    said = capfd.readouterr()
    assert said.out == ""
    assert "usage: relevo" in said.err


def test_a_process_may_be_told_twice_to_end_with_its_parent():
    """Its main module may be imported once more, under its own name."""
    code = "from relevo.launch.child import die_with_parent as d; d(); d(); print('lives')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {PARENT: str(os.getpid())},
        capture_output=True,
        text=True,
        timeout=END_DEADLINE_S,
        check=True,
    )
    assert ended.stdout == "lives\n"


def test_a_benchmark_that_is_stopped_stops_what_it_started():
    bench = Serve(command=["bench", "interference"]).until("long prompts beside")
    family = bench.family()
    assert len(family) > 2
    bench.popen.terminate()
    assert bench.end() == 130
    wait_gone(family)
    assert "Traceback" not in bench.said


@pytest.mark.parametrize("victim", ["supervisor", "router", "prefill", "decode"])
def test_sigkill_of_any_process_ends_the_others(victim):
    before = shared_files()
    serve = Serve().until("serving")
    family = serve.family()
    next(p for p in family if role_of(p) == victim).kill()
    code = serve.end()
    wait_gone(family)
    assert shared_files() == before
    if victim != "supervisor":
        assert code == 1
        assert "SIGKILL" in serve.said


def test_a_worker_that_dies_while_loading_is_named():
    serve = Serve().until("router: ready")
    workers = []
    while not workers:
        workers = [p for p in serve.family() if role_of(p) == "decode"]
    workers[0].kill()
    assert serve.end() == 1
    assert "decode-0 was ended by SIGKILL" in serve.said


def test_a_port_in_use_is_said_with_exit_code_2():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        serve = Serve("--port", port)
        assert serve.end() == 2
    assert f"127.0.0.1:{port}" in serve.said
    assert "address already in use" in serve.said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kv-memory", "0"], "kv-memory"),
        (["--dtype", "int3"], "dtype: 'int3'"),
        (["--prefill", "-1"], "prefill: -1"),
        (["--decode", "0"], "decode"),
    ],
)
def test_a_bad_setting_is_named_with_exit_code_2(arguments, says):
    serve = Serve(*arguments)
    assert serve.end() == 2
    assert says in serve.said
    assert "Traceback" not in serve.said


@pytest.mark.parametrize("keep", [0, 5000, 3_000_000])
def test_a_truncated_model_is_named_with_exit_code_2(smollm, tmp_path, keep):
    cut = tmp_path / "cut.gguf"
    with smollm.path.open("rb") as whole:
        cut.write_bytes(whole.read(keep))
    serve = Serve(model=cut)
    assert serve.end() == 2
    assert "cut.gguf" in serve.said
    assert "Traceback" not in serve.said


def test_a_model_that_does_not_exist_is_named_with_exit_code_2(tmp_path):
    serve = Serve(model=tmp_path / "nothing")
    assert serve.end() == 2
    assert "nothing" in serve.said


def test_a_pool_too_small_for_a_request_refuses_it_and_serves_the_next(smollm):
    from .conftest import deployed

    with deployed(smollm, prefill=1, decode=1, arguments=("--kv-memory", "2")) as api:
        limit = api.call("/v1/completions", {"model": api.model, "prompt": [5] * 300})
        assert limit[0] == 400
        assert "context is 64 tokens" in limit[1]["error"]["message"]
        assert api.tokens([5] * 40, 4)


def test_help_needs_no_heavy_imports():
    code = (
        "import sys; sys.argv = ['relevo', '--help']\n"
        "try:\n    from relevo.cli.main import main; main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'zmq', 'aiohttp', 'tokenizers', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_on_the_way_out_shows_no_traceback(number):
    """As a worker gets one that fails of a bad setting while its supervisor stops the rest."""
    code = (
        "import atexit, os, sys\n"
        f"atexit.register(os.kill, os.getpid(), {number.value})\n"
        "sys.argv = ['relevo', 'serve', 'nothing']\n"
        "from relevo.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -number
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_child_whose_supervisor_has_gone_does_not_start():
    environment = os.environ | {"RELEVO_PARENT": "1234567"}
    done = subprocess.run(
        [sys.executable, "-m", "relevo", "router", DEMO_MODEL],
        env=environment,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1

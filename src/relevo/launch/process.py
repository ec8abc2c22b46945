"""One supervised process and the lines that it says about itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from relevo.launch.child import PARENT, STATUS_FD

# Not `-m relevo`: what multiprocessing spawns imports no package's `__main__`.
RELEVO = (sys.executable, "-m", "relevo.cli.main")


class Process:
    """A `relevo` command in a session of its own, so that Ctrl-C reaches its supervisor only.

    Must be created by a thread that outlives it: the kernel ends it with that thread.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.arguments = arguments
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        environment = os.environ | {STATUS_FD: str(write), PARENT: str(os.getpid())}
        self._popen = subprocess.Popen(
            [*RELEVO, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is for results: vLLM writes its log there
            pass_fds=[write],
            start_new_session=True,
            env=environment,
        )
        os.close(write)
        self._buffer = b""
        self.exit_reported = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status_fd(self) -> int:
        return self._read

    def lines(self) -> list[dict[str, Any]]:
        """What it has said since the last call."""
        while True:
            try:
                data = os.read(self._read, 65536)
            except BlockingIOError:
                break
            if not data:
                break
            self._buffer += data
        *whole, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in whole]

    def exit_code(self) -> int | None:
        """None while it runs; negative is the signal that ended it."""
        return self._popen.poll()

    def terminate(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Until it has ended; past `deadline` (time.monotonic) it is killed."""
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        with contextlib.suppress(ProcessLookupError):  # vLLM's own processes outlive ours
            os.killpg(self._popen.pid, signal.SIGKILL)
        os.close(self._read)

    def describe_exit(self) -> str:
        code = self._popen.poll()
        if code is not None and code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit code {code}"

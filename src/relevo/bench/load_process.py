"""A load generator in a process of its own, on cores of its own where there are any to give."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from relevo.bench.load import REQUEST_DEADLINE_S, Target
from relevo.bench.rows import LoadRun
from relevo.bench.trace import Trace
from relevo.errors import StateError
from relevo.launch.child import PARENT
from relevo.launch.process import RELEVO

START_S = 60.0
POLL_S = 0.25
KILL_S = 5.0


class LoadFailed(StateError):
    """The load generator ended without a result."""


def run_load(
    target: Target,
    trace: Trace,
    cores: Sequence[int],
    salt: int,
    on_poll: Callable[[float], object] = lambda elapsed_s: None,
) -> LoadRun:
    """Replays the trace; `salt` as in PromptMaker; `on_poll(elapsed)` is called now and then.
    Raises LoadFailed."""
    with tempfile.TemporaryDirectory(prefix="relevo-load-") as folder:
        arrivals, out = Path(folder, "arrivals.json"), Path(folder, "run.json")
        arrivals.write_bytes(trace.to_bytes())
        arguments = [
            "bench", "load", "--url", target.url, "--model", target.model,
            "--vocabulary", str(target.vocabulary), "--salt", str(salt),
            "--trace", str(arrivals), "--out", str(out),
        ]  # fmt: skip
        if cores:
            arguments += ["--cores", ",".join(map(str, cores))]
        _run(arguments, START_S + trace.span_s + 2 * REQUEST_DEADLINE_S, on_poll)
        return msgspec.json.decode(out.read_bytes(), type=LoadRun)


def _run(arguments: list[str], limit_s: float, on_poll: Callable[[float], object]) -> None:
    begin = time.monotonic()
    process = subprocess.Popen(
        [*RELEVO, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {PARENT: str(os.getpid())},
    )
    try:
        while True:
            try:
                _, said = process.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - begin
                if elapsed > limit_s:
                    raise LoadFailed(f"no end within {limit_s:.0f} s") from None
                on_poll(elapsed)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise LoadFailed(said.strip().splitlines()[-1] if said.strip() else "no word")

"""vLLM's own processes end with the one of ours that made them, however it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from .conftest import ENVIRONMENT, START_S

END_S = 20


def family_with_engine(popen):
    """All processes below, as soon as vLLM's engine is among them."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        family = psutil.Process(popen.pid).children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("VLLM::EngineCore" in " ".join(process.cmdline()) for process in family):
                return family
        time.sleep(0.05)
    raise AssertionError(f"no engine within {START_S} s")


@pytest.mark.parametrize("roles", [("--mixed", "1"), ("--prefill", "1", "--decode", "1")])
@pytest.mark.parametrize("after_s", [0, 15])
def test_a_killed_supervisor_leaves_no_engine(smollm, roles, after_s):
    """`after_s` the engine's process has its name: it loads the model, or runs."""
    serve = subprocess.Popen(
        [sys.executable, "-m", "relevo", "serve", str(smollm.path), "--engine", "vllm",
         "--port", "0", "--kv-memory", "256", *roles,
         "--vllm-arguments=--enforce-eager --max-model-len 2048"],
        env=os.environ | ENVIRONMENT,
    )  # fmt: skip
    try:
        family_with_engine(serve)
        time.sleep(after_s)
        family = family_with_engine(serve)
        serve.send_signal(signal.SIGKILL)
        serve.wait()
        _, alive = psutil.wait_procs(family, timeout=END_S)
    finally:
        if serve.poll() is None:
            serve.kill()
            serve.wait()
    for process in alive:
        process.kill()
    assert not alive

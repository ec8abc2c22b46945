"""A library in somebody's process leaves signals to it."""

import subprocess
import sys

CODE = """
import re
from pathlib import Path

def caught():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"SigCgt:\\s*(\\w+)", status)[1], 16)

before = caught()
from relevo.transfer.libfabric import providers
providers()
print(hex(caught() & ~before))
"""


def test_loading_libfabric_takes_no_signal():
    ended = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "0x0\n"

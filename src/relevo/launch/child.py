"""What a supervised process does for its supervisor: says how it is, and dies with it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from relevo.worker.environment import end_with_parent

STATUS_FD = "RELEVO_STATUS_FD"
PARENT = "RELEVO_PARENT"


class StatusPipe:
    """Lines of JSON to the supervisor; to standard error where there is none."""

    def __init__(self) -> None:
        fd = os.environ.pop(STATUS_FD, None)
        self._pipe = None if fd is None else os.fdopen(int(fd), "w")

    def say(self, state: str, **detail: Any) -> None:
        if self._pipe is None:
            rest = " ".join(f"{key}={value}" for key, value in detail.items())
            print(f"relevo: {state} {rest}".rstrip(), file=sys.stderr, flush=True)
            return
        try:
            self._pipe.write(json.dumps({"state": state, **detail}) + "\n")
            self._pipe.flush()
        except BrokenPipeError:
            return  # the supervisor has gone; so will this process


def die_with_parent() -> None:
    """The kernel ends this process with the one that made it, however that ends, and with this one
    what it makes in turn. Nothing has to be cleaned up: sockets are abstract, memory files
    anonymous. Does nothing where no parent has named itself in PARENT."""
    parent = os.environ.get(PARENT)
    if parent in (None, str(os.getpid())):  # its own: done before
        return
    end_with_parent()
    if os.getppid() != int(parent):  # it died before the request was in place
        os._exit(1)
    take_children_along()


def take_children_along() -> None:
    """What multiprocessing or `launch` makes from here ends with this process."""
    os.environ[PARENT] = str(os.getpid())

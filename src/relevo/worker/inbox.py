"""How two threads talk: calls are queued with an eventfd that their owner can sleep on."""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any


class Inbox:
    """Calls posted by any thread, run by the one that owns the inbox. Posting never blocks."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def post(self, call: Callable[..., object], *arguments: Any) -> None:
        self._calls.append((call, arguments))
        os.eventfd_write(self.fd, 1)

    def run_all(self) -> None:
        """Runs what has been posted, in order."""
        # Cleared even where there is no call: an earlier round may have taken a call before its
        # signal was written, and a signal left standing would make every wait end at once.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)

    def watch(self, fd: int) -> None:
        """`wait` ends also when `fd` is readable."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Until something is posted, at most `timeout_s`."""
        if not self._calls:
            self._poll.poll(int(timeout_s * 1000))

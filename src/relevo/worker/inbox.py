"""How two threads talk: calls are queued with an eventfd that their owner can sleep on."""

from __future__ import annotations

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
        if not self._calls:
            return
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass  # a previous round took the calls together with their signal
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)

    def wait(self, timeout_s: float) -> None:
        """Until something is posted, at most `timeout_s`."""
        if not self._calls:
            self._poll.poll(int(timeout_s * 1000))

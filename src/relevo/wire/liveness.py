"""When to send a heartbeat, and when a peer counts as lost. No I/O, no clock of its own.

Heartbeats come from a thread that never waits for a forward pass, so a busy worker is not a silent
one. They carry step progress, so a worker that answers but computes no more is not a live one.
"""

from __future__ import annotations

import msgspec

HEARTBEAT_S = 1.0
SILENCE_S = 8.0
HUNG_S = 120.0  # longer than any one forward pass


class Liveness(msgspec.Struct):
    """One side's view of a link; times are seconds on any monotonic clock."""

    heard_at: float
    sent_at: float = float("-inf")
    steps: int = -1
    progressed_at: float = float("inf")

    def heard(self, now: float) -> None:
        self.heard_at = now

    def progress(self, now: float, steps: int, busy: bool) -> None:
        """What a heartbeat said: steps ended so far, and whether the worker has something to do."""
        if not busy or steps != self.steps:
            self.progressed_at = now
        self.steps = steps

    def due(self, now: float) -> bool:
        """True when a heartbeat should be sent now; counts it as sent."""
        if now - self.sent_at < HEARTBEAT_S:
            return False
        self.sent_at = now
        return True

    def silence(self, now: float) -> float:
        """Seconds since the peer was last heard."""
        return now - self.heard_at

    def lost(self, now: float) -> str | None:
        """Why the peer counts as lost, or None."""
        if self.silence(now) > SILENCE_S:
            return f"it has been silent for {SILENCE_S:.0f} s"
        if now - self.progressed_at > HUNG_S:
            return f"it has ended no step for {HUNG_S:.0f} s"
        return None

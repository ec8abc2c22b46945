"""When to send a heartbeat and when a peer counts as silent. No I/O, no clock of its own."""

from __future__ import annotations

import msgspec

HEARTBEAT_S = 1.0
SILENCE_S = 8.0


class Liveness(msgspec.Struct):
    """One side's view of a link; times are seconds on any monotonic clock."""

    heard_at: float
    sent_at: float = float("-inf")

    def heard(self, now: float) -> None:
        self.heard_at = now

    def due(self, now: float) -> bool:
        """True when a heartbeat should be sent now; counts it as sent."""
        if now - self.sent_at < HEARTBEAT_S:
            return False
        self.sent_at = now
        return True

    def silent(self, now: float) -> bool:
        return now - self.heard_at > SILENCE_S

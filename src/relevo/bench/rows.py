"""What a load generator saw of each request: the rows that every figure is computed from."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

Outcome = Literal["ok", "refused", "failed"]


class ServerFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the server's own timeline, where it has one. `transfer_ms`: from the first layer's push
    until all has landed; `exposed_transfer_ms`: what of it came after the last chunk."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    transfer_ms: float | None = None
    exposed_transfer_ms: float | None = None
    kv_bytes: int | None = None
    prefill_worker: str = ""
    decode_worker: str = ""


class RequestRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times in ms since the replay's begin, at the client. `arrivals_ms`: of each chunk that
    carried tokens; `chunk_tokens`: how many each carried (empty: one each). `refused`: the server
    said 429 or 503; `failed`: any other end before the answer's."""

    index: int
    scheduled_ms: float
    sent_ms: float
    outcome: Outcome
    prompt_tokens: int
    wanted_tokens: int
    arrivals_ms: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    id: str = ""
    error: str = ""
    server: ServerFigures | None = None

    @property
    def tokens(self) -> int:
        """Of the answer, as far as it came."""
        return sum(self.chunk_tokens) if self.chunk_tokens else len(self.arrivals_ms)

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def late_ms(self) -> float:
        """How much later than planned it was sent."""
        return self.sent_ms - self.scheduled_ms

    @property
    def ttft_ms(self) -> float | None:
        """First token - send. None without a token."""
        return self.arrivals_ms[0] - self.sent_ms if self.arrivals_ms else None

    @property
    def e2e_ms(self) -> float | None:
        """Last token - send."""
        return self.arrivals_ms[-1] - self.sent_ms if self.arrivals_ms else None

    @property
    def tpot_ms(self) -> float | None:
        """(E2E - TTFT) / (tokens - 1); None for fewer than two tokens."""
        if self.tokens < 2:
            return None
        return (self.arrivals_ms[-1] - self.arrivals_ms[0]) / (self.tokens - 1)

    def gaps_ms(self) -> list[float]:
        """ITL: each token's arrival - the one before; 0 within a chunk."""
        counts = self.chunk_tokens or (1,) * len(self.arrivals_ms)
        gaps: list[float] = []
        for index, (at, count) in enumerate(zip(self.arrivals_ms, counts, strict=True)):
            if index:
                gaps.append(at - self.arrivals_ms[index - 1])
            gaps += [0.0] * (count - 1)
        return gaps


class LoadRun(msgspec.Struct, frozen=True):
    """One replay of a trace. `begin_ns`: on CLOCK_MONOTONIC, the rows' 0. `lag_p99_ms`: how late
    the load generator's own timer ticks came, which is what its stamps may be off by."""

    trace: str  # its digest
    begin_ns: int
    span_s: float
    elapsed_s: float
    lag_p99_ms: float
    cpu_s: float  # that the load generator took
    rows: tuple[RequestRow, ...]

    @property
    def digest(self) -> str:
        """Of the rows; another for any change in any of them."""
        return hashlib.sha256(msgspec.json.encode(self.rows)).hexdigest()

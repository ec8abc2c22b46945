"""Figures of a replay from its rows. Every formula is in FORMULAS, which reports print."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from relevo.bench.rows import LoadRun, RequestRow
from relevo.bench.statistics import percentile

LATE_P99_MS = 50.0  # requests sent later than this are not the trace any more
LAG_P99_MS = 20.0
SHORT_TOKENS, LONG_TOKENS = 256, 1000

FORMULAS = {
    "ttft_ms": "first token's arrival - send, at the client; chunks without a token do not count",
    "tpot_ms": "(last token's arrival - first's) / (tokens - 1); one-token answers are left out",
    "itl_ms": "each token's arrival - that of the one before; 0 within a chunk",
    "itl_p99_ms": "of one request: the 99th percentile of its ITLs",
    "longest_gap_ms": "of one request: its greatest ITL",
    "e2e_ms": "last token's arrival - send",
    "attainment": "requests within all budgets / requests offered; refused and failed ones miss",
    "goodput_rps": "requests within all budgets / seconds in which requests were offered",
    "prompt_tokens_per_s": "prompt tokens of answered requests / (last token's arrival - begin)",
    "output_tokens_per_s": "tokens that arrived / (last token's arrival - begin)",
    "queue_ms": "dispatch - receipt, at the router",
    "transfer_ms": "all pages landed - first layer pushed",
    "exposed_transfer_ms": "all pages landed - end of the last prefill chunk",
    "late_ms": "send - the trace's time; a replay is invalid above a p99 of 50 ms",
    "percentiles": "linear between the two nearest ranks, over all requests of all repeats",
    "intervals": "95 %, by resampling whole repeats",
}


class Budgets(msgspec.Struct, frozen=True):
    """A request is good when it meets all; those on TPOT and ITL do not bind one-token answers."""

    ttft_ms: float
    tpot_ms: float
    itl_p99_ms: float

    def met(self, row: RequestRow, scale: float = 1.0) -> bool:
        ttft, tpot = row.ttft_ms, row.tpot_ms
        if not row.ok or ttft is None or ttft > self.ttft_ms * scale:
            return False
        if tpot is None:
            return True
        if tpot > self.tpot_ms * scale:
            return False
        return percentile(row.gaps_ms(), 0.99) <= self.itl_p99_ms * scale


def validity(run: LoadRun, *, closed: bool = False) -> list[str]:
    """Why the replay does not count; empty when it does. A closed loop is never late."""
    reasons = []
    if not run.rows:
        return ["no request was sent"]
    late = 0.0 if closed else percentile([row.late_ms for row in run.rows], 0.99)
    if late > LATE_P99_MS:
        reasons.append(f"requests were sent {late:.0f} ms late at p99, over {LATE_P99_MS:.0f} ms")
    if run.lag_p99_ms > LAG_P99_MS:
        reasons.append(
            f"the load generator's timer ran {run.lag_p99_ms:.0f} ms late at p99, over "
            f"{LAG_P99_MS:.0f} ms"
        )
    if not any(row.ok for row in run.rows):
        first = next((row.error for row in run.rows if row.error), "no answer")
        reasons.append(f"no request was answered: {first}")
    return reasons


def goodput(run: LoadRun, budgets: Budgets, scale: float = 1.0) -> float:
    """Requests per second."""
    return sum(budgets.met(row, scale) for row in run.rows) / run.span_s


def attainment(rows: Sequence[RequestRow], budgets: Budgets, scale: float = 1.0) -> float:
    """Of the requests offered; 0 for none."""
    return sum(budgets.met(row, scale) for row in rows) / len(rows) if rows else 0.0


def group_of(row: RequestRow) -> str:
    """By the prompt's length."""
    if row.prompt_tokens <= SHORT_TOKENS:
        return "short"
    return "long" if row.prompt_tokens >= LONG_TOKENS else "middle"


def _per_request(
    figure: Callable[[RequestRow], float | None],
) -> Callable[[Sequence[RequestRow]], list[float]]:
    def of(rows: Sequence[RequestRow]) -> list[float]:
        found = (figure(row) for row in rows if row.ok)
        return [value for value in found if value is not None]

    return of


def _gaps(rows: Sequence[RequestRow]) -> list[float]:
    return [gap for row in rows if row.ok for gap in row.gaps_ms()]


def _itl_p99(row: RequestRow) -> float | None:
    gaps = row.gaps_ms()
    return percentile(gaps, 0.99) if gaps else None


def _server(name: str) -> Callable[[RequestRow], float | None]:
    return lambda row: getattr(row.server, name) if row.server else None


# Samples whose percentiles are reported; of answered requests only.
SAMPLES: dict[str, Callable[[Sequence[RequestRow]], list[float]]] = {
    "ttft_ms": _per_request(lambda row: row.ttft_ms),
    "tpot_ms": _per_request(lambda row: row.tpot_ms),
    "itl_ms": _gaps,
    "itl_p99_ms": _per_request(_itl_p99),
    "longest_gap_ms": _per_request(lambda row: max(row.gaps_ms(), default=None)),
    "e2e_ms": _per_request(lambda row: row.e2e_ms),
    "queue_ms": _per_request(_server("queue_ms")),
    "prefill_ms": _per_request(_server("prefill_ms")),
    "transfer_ms": _per_request(_server("transfer_ms")),
    "exposed_transfer_ms": _per_request(_server("exposed_transfer_ms")),
    "kv_bytes": _per_request(_server("kv_bytes")),
}


def rates(run: LoadRun, budgets: Budgets) -> dict[str, float]:
    """Figures that are one number per replay."""
    until_s = max((r.arrivals_ms[-1] for r in run.rows if r.arrivals_ms), default=0.0) / 1e3
    seconds = until_s or run.elapsed_s or 1.0
    return {
        "offered_rps": len(run.rows) / run.span_s,
        "goodput_rps": goodput(run, budgets),
        "attainment": attainment(run.rows, budgets),
        "prompt_tokens_per_s": sum(r.prompt_tokens for r in run.rows if r.ok) / seconds,
        "output_tokens_per_s": sum(r.tokens for r in run.rows) / seconds,
        "refused": float(sum(r.outcome == "refused" for r in run.rows)),
        "failed": float(sum(r.outcome == "failed" for r in run.rows)),
    }

"""A request's timeline as a drawing for the terminal."""

from __future__ import annotations

from typing import Any

WIDTH = 64
_BAR, _TICK, _LANDED = "█", "╷", "◆"


def draw_timeline(timeline: dict[str, Any]) -> str:
    """`timeline` as GET /v1/requests/{id}/timeline answers it. Times are ms since receipt; the
    drawing ends with the first token."""
    events = timeline["events"]
    end = next((e["at_ms"] for e in events if e["name"] == "first-token"), 0.0) or 1.0

    def column(at_ms: float) -> int:
        return max(0, min(WIDTH - 1, int(at_ms / end * WIDTH)))

    def bar(spans: list[tuple[float, float]]) -> str:
        cells = [" "] * WIDTH
        for begin, finish in spans:
            for i in range(column(begin), column(finish) + 1):
                cells[i] = _BAR
        return "".join(cells)

    def marks(times: list[float], mark: str) -> str:
        cells = [" "] * WIDTH
        for at in times:
            cells[column(at)] = mark
        return "".join(cells)

    chunks = _spans(events, "prefill-start", "prefill-end")
    steps = _spans(events, "first-step", "first-token")
    layers = [ms for e in events for ms in e.get("layers_ms", [])]
    landed = [e["at_ms"] for e in events if e["name"] == "kv-landed"]
    prefill = next((e["who"] for e in events if e["name"] == "prefill-start"), "")
    decode = next((e["who"] for e in events if e["name"] == "first-token"), "")
    computed = sum(e["last"] - e["first"] for e in events if e["name"] == "prefill-start")
    rows = [(prefill, bar(chunks), f"prefill, {computed} tokens")]
    if layers:
        rows.append(("", marks(layers, _TICK), f"{len(layers)} layers pushed while computing"))
    if landed:
        rows.append((decode, marks(landed, _LANDED), f"all pages landed at {landed[0]:.1f} ms"))
    rows.append((decode, bar(steps), "first decode step"))
    lines = [f"{who:>10} ┃{cells}┃ {what}" for who, cells, what in rows]
    return "\n".join([*lines, " " * 12 + _axis(end), " " * 12 + _summary(timeline)])


def _spans(events: list[dict[str, Any]], first: str, last: str) -> list[tuple[float, float]]:
    begins = [e["at_ms"] for e in events if e["name"] == first]
    ends = [e["at_ms"] for e in events if e["name"] == last]
    return list(zip(begins, ends, strict=False))


def _axis(end_ms: float) -> str:
    right = f"{end_ms:.0f} ms"
    return "0" + " " * (WIDTH - 1 - len(right)) + right


def _summary(timeline: dict[str, Any]) -> str:
    figures = timeline["figures"]
    parts = [f"TTFT {figures['ttft_ms']:.0f} ms"]
    if figures["exposed_transfer_ms"] is not None:
        parts += [
            f"{figures['bytes'] / 2**20:.1f} MiB in {figures['writes']} writes"
            f" ({figures['parts']} parts)",
            f"exposed transfer {figures['exposed_transfer_ms']:.2f} ms",
            f"landed to step {figures['ready_to_step_ms']:.2f} ms",
        ]
    reused = figures["pages_reused_by_prefill"], figures["pages_reused_by_decode"]
    if any(reused):
        parts.append(f"pages reused: {reused[0]} by prefill, {reused[1]} by decode")
    return "; ".join(parts)

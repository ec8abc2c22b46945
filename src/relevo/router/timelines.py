"""What happened to each of the last requests, and the figures that follow from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relevo.types import TimelineEvent

KEPT = 1000


@dataclass
class RequestTimeline:
    """Events of one request in order of arrival; `workers` by role."""

    request: str
    prompt_tokens: int
    workers: dict[str, str] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)


class Timelines:
    """Keeps the last KEPT requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, RequestTimeline] = OrderedDict()

    def open(self, timeline: RequestTimeline) -> None:
        self._kept[timeline.request] = timeline
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def add(self, request: str, events: Iterable[TimelineEvent]) -> None:
        timeline = self._kept.get(request)
        if timeline is not None:
            timeline.events += events

    def get(self, request: str) -> RequestTimeline | None:
        return self._kept.get(request)


def _first(events: list[TimelineEvent], name: str) -> int | None:
    return next((e.at_ns for e in events if e.name == name), None)


def _last(events: list[TimelineEvent], name: str) -> int | None:
    return next((e.at_ns for e in reversed(events) if e.name == name), None)


def _between(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else round((end - start) / 1e6, 3)


def figures(timeline: RequestTimeline) -> dict[str, Any]:
    """Durations in ms, from one clock. None where an end is missing.

    ttft = first-token - received; exposed_transfer = kv-landed - end of the last chunk;
    ready_to_step = first-step - kv-landed; these two and prefill of the last attempt.
    """
    events = sorted(timeline.events, key=lambda e: e.at_ns)
    dispatched = _last(events, "dispatched") or 0
    attempt = [e for e in events if e.at_ns >= dispatched]
    pushed = [e.detail for e in events if e.name == "pushed"]
    reused = {
        name: next((e.detail["reused_pages"] for e in events if e.name in names
                    and "reused_pages" in e.detail), 0)
        for name, names in (
            ("decode", ("pages-reserved", "local-prefill")),
            ("prefill", ("prefill-start", "prefill-cached")),
        )
    }  # fmt: skip

    def total(key: str) -> int:
        return sum(value for d in pushed if isinstance(value := d.get(key), int))

    return {
        "queue_ms": _between(_first(events, "received"), _first(events, "dispatched")),
        "prefill_ms": _between(_first(attempt, "prefill-start"), _last(attempt, "prefill-end")),
        "exposed_transfer_ms": _between(
            _last(attempt, "prefill-end"), _first(attempt, "kv-landed")
        ),
        "ready_to_step_ms": _between(_first(attempt, "kv-landed"), _first(attempt, "first-step")),
        "ttft_ms": _between(_first(events, "received"), _first(events, "first-token")),
        "e2e_ms": _between(_first(events, "received"), _last(events, "done")),
        "bytes": total("bytes"),
        "writes": total("writes"),
        "parts": total("parts"),
        "pages_reused_by_prefill": reused["prefill"],
        "pages_reused_by_decode": reused["decode"],
    }


def describe(timeline: RequestTimeline) -> dict[str, Any]:
    """The timeline as JSON: times in ms since the request was received."""
    events = sorted(timeline.events, key=lambda e: e.at_ns)
    origin = events[0].at_ns if events else 0
    return {
        "request": timeline.request,
        "prompt_tokens": timeline.prompt_tokens,
        "workers": timeline.workers,
        "figures": figures(timeline),
        "events": [
            {
                "name": event.name,
                "at_ms": round((event.at_ns - origin) / 1e6, 3),
                "who": event.who,
                **_relative(event.detail, origin),
            }
            for event in events
        ],
    }


def _relative(detail: dict[str, Any], origin: int) -> dict[str, Any]:
    """Lists of times become ms like every other time."""
    out = dict(detail)
    if "layers_ns" in out:
        out["layers_ms"] = [round((ns - origin) / 1e6, 3) for ns in out.pop("layers_ns")]
    return out

from relevo.router.timelines import KEPT, RequestTimeline, Timelines, describe, figures
from relevo.types import TimelineEvent

MS = 1_000_000


def event(name, ms, who="w", **detail):
    return TimelineEvent(name, ms * MS, who, detail)


HANDED_OFF = [
    event("received", 100),
    event("dispatched", 101),
    event("pages-reserved", 102, reused_pages=2, wanted_pages=3),
    event("prefill-start", 103, first=0, last=40, reused_pages=1),
    event("kv-landed", 151),
    event("pushed", 150, writes=3, parts=6, bytes=600, layers_ns=[110 * MS, 120 * MS]),
    event("prefill-end", 149),
    event("first-step", 152),
    event("first-token", 190),
    event("done", 300),
]


def test_figures_follow_from_the_events():
    got = figures(RequestTimeline("r", 41, events=list(HANDED_OFF)))
    assert got == {
        "queue_ms": 1, "prefill_ms": 46, "exposed_transfer_ms": 2, "ready_to_step_ms": 1,
        "ttft_ms": 90, "e2e_ms": 200, "bytes": 600, "writes": 3, "parts": 6,
        "pages_reused_by_prefill": 1, "pages_reused_by_decode": 2,
    }  # fmt: skip


def test_what_did_not_happen_is_none_not_zero():
    got = figures(RequestTimeline("r", 1, events=HANDED_OFF[:2]))
    assert got["exposed_transfer_ms"] is None
    assert got["ttft_ms"] is None


def test_times_are_relative_and_in_order():
    described = describe(RequestTimeline("r", 41, events=list(HANDED_OFF)))
    times = [e["at_ms"] for e in described["events"]]
    assert times == sorted(times)
    assert times[0] == 0
    pushed = next(e for e in described["events"] if e["name"] == "pushed")
    assert pushed["layers_ms"] == [10, 20]


def test_only_the_last_are_kept():
    timelines = Timelines()
    for i in range(KEPT + 5):
        timelines.open(RequestTimeline(str(i), 1))
    timelines.add("3", [event("late", 1)])
    assert timelines.get("4") is None
    assert timelines.get("5") is not None

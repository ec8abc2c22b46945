from relevo.cli.timeline_view import WIDTH, draw_timeline
from relevo.router.timelines import RequestTimeline, describe
from tests.router.test_timelines import HANDED_OFF, event


def test_a_handoff_is_drawn_with_its_marks_in_place():
    timeline = describe(RequestTimeline("r", 41, {"prefill": "p0"}, list(HANDED_OFF)))
    lines = draw_timeline(timeline).splitlines()
    assert all(len(line.split("┃")[1]) == WIDTH for line in lines if "┃" in line)
    landed = next(line for line in lines if "◆" in line).split("┃")[1]
    assert landed.index("◆") == int(51 / 90 * WIDTH)
    assert "2 layers pushed" in "\n".join(lines)
    assert "exposed transfer 2.00 ms" in lines[-1]


def test_a_local_prefill_has_no_transfer():
    events = [event("received", 0), event("prefill-start", 1, first=0, last=9, reused_pages=0),
              event("prefill-end", 5), event("first-step", 5), event("first-token", 9)]  # fmt: skip
    text = draw_timeline(describe(RequestTimeline("r", 10, {"mixed": "m0"}, events)))
    assert "prefill, 9 tokens" in text
    assert "pushed" not in text

"""The vLLM connector's half in the scheduler, without vLLM: what is asked for, when, and that every
request is settled once."""

from dataclasses import dataclass, field

import pytest

from relevo.worker.vllm_plan import HandoffParams, handoff_id, next_attempt
from relevo.worker.vllm_scheduler import SchedulerHalf

BLOCK = 16
PREFILL = "tcp://p:1"


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list = field(default_factory=lambda: list(range(50)))
    kv_transfer_params: dict | None = None


def sender(id="s", number=7, **fields):
    return Request(id, kv_transfer_params={"relevo": {"handoff": number}}, **fields)


def receiver(id="r", number=7, prefill=(PREFILL,), **fields):
    params = {"relevo": {"handoff": number, "prefill": list(prefill)}}
    return Request(id, kv_transfer_params=params, **fields)


@pytest.fixture
def half():
    return SchedulerHalf(BLOCK, local_prefill_tokens=0)


def plan(half, scheduled=None, computed=None, pages=None, preempted=()):
    return half.plan(scheduled or {}, computed or {}, lambda r: (pages or {})[r], preempted)


def asked(half, request, computed=0, blocks=tuple(range(100, 104))):
    """Through vLLM's steps until the blocks are asked for."""
    half.arrived(request)
    external, later = half.matched(request, computed)
    assert later
    half.allocated(request, blocks, external)
    (receive,) = plan(half).receive
    return receive


def test_a_request_without_our_parameters_is_none_of_ours(half):
    request = Request("r", kv_transfer_params={"do_remote_prefill": True})
    half.arrived(request)
    assert half.matched(request, 0) == (0, False)
    assert half.finished(request) is False
    assert plan(half, {"r": 50}, {"r": 0}).compute == ()


@pytest.mark.parametrize(
    ("ours", "names"),
    [
        ({"handoff": "seven"}, "handoff"),
        ({"handoff": -1}, "handoff"),
        ({"handoff": 2**63}, "handoff"),
        ({"handoff": 1, "prefill": ["http://127.0.0.1:8001/v1"]}, "prefill"),
        ({"handoff": 1, "prefill": ["tcp://127.0.0.1"]}, "prefill"),
        ({"handoff": 1, "prefill": [""]}, "prefill"),
        ({"handoff": 1, "decode": []}, "decode"),
        ([1], "object"),
    ],
)
def test_parameters_that_are_wrong_are_no_end_of_the_engine(half, caplog, ours, names):
    request = Request("r", kv_transfer_params={"relevo": ours})
    half.arrived(request)
    assert half.matched(request, 0) == (0, False)
    assert names in caplog.text


def test_all_but_the_last_token_is_asked_for(half):
    receive = asked(half, receiver())
    assert (receive.tokens, receive.first_page) == (tuple(range(49)), 0)
    assert receive.pages == (100, 101, 102, 103)
    assert receive.prefill == (PREFILL,)


def test_what_the_decode_side_has_is_not_asked_for(half):
    receive = asked(half, receiver(), computed=32)
    assert (receive.first_page, receive.pages) == (2, (102, 103))


def test_a_remainder_that_is_short_is_computed_here():
    half = SchedulerHalf(BLOCK, local_prefill_tokens=20)
    request = receiver()
    half.arrived(request)
    assert half.matched(request, 32) == (0, False)
    assert half.matched(request, 16) == (33, True)


def test_a_prompt_of_one_token_needs_nobody(half):
    request = receiver(prompt_token_ids=[5])
    half.arrived(request)
    assert half.matched(request, 0) == (0, False)
    assert half.finished(request) is False


def test_both_sides_meet_on_the_same_tokens_only():
    params = HandoffParams(handoff=7)
    assert handoff_id(params, [1, 2]) == handoff_id(params, [1, 2])
    assert handoff_id(params, [1, 2]) != handoff_id(params, [1, 3])
    assert handoff_id(HandoffParams(handoff=8), [1, 2]) != handoff_id(params, [1, 2])


def test_the_two_sides_draw_the_same_id():
    sending, receiving = SchedulerHalf(BLOCK, 0), SchedulerHalf(BLOCK, 0)
    receive = asked(receiving, receiver())
    sending.arrived(sender())
    (compute,) = plan(sending, {"s": 50}, {"s": 0}, {"s": [1, 2, 3, 4]}).compute
    assert compute.handoff == receive.handoff
    assert compute.computed == 49, "the last token is of no use to the other side"


def test_chunks_say_how_far_they_get(half):
    half.arrived(sender())
    first = plan(half, {"s": 20}, {"s": 0}, {"s": [1, 2]})
    second = plan(half, {"s": 30}, {"s": 20}, {"s": [1, 2, 3, 4]})
    assert [first.compute[0].computed, second.compute[0].computed] == [20, 49]
    assert second.compute[0].pages == (1, 2, 3, 4)
    assert first.queued == (first.compute[0].handoff,)
    assert second.queued == ()


def test_blocks_are_kept_until_they_are_sent(half):
    request = sender()
    half.arrived(request)
    plan(half, {"s": 50}, {"s": 0}, {"s": [1, 2, 3, 4]})
    assert half.finished(request) is True
    (ended,) = plan(half).ended
    assert (ended.request, ended.computed, ended.held) == ("s", True, True)


def test_a_request_that_ends_half_way_says_so(half):
    request = sender()
    half.arrived(request)
    plan(half, {"s": 20}, {"s": 0}, {"s": [1, 2]})
    assert half.finished(request) is True
    assert plan(half).ended[0].computed is False


def test_a_request_that_was_never_scheduled_keeps_nothing(half):
    request = sender()
    half.arrived(request)
    assert half.finished(request) is False
    (ended,) = plan(half).ended
    assert (ended.computed, ended.held) == (False, False)


def test_the_same_prompt_twice_is_sent_once(half):
    for id in ("a", "b"):
        half.arrived(sender(id))
    compute = plan(half, {"a": 50, "b": 50}, {"a": 0, "b": 0}, {"a": [1], "b": [2]}).compute
    assert [c.request for c in compute] == ["a"]
    assert half.finished(sender("b")) is False
    assert half.finished(sender("a")) is True
    half.arrived(sender("c"))
    assert half.finished(sender("c")) is False, "the blocks of the first are still kept for it"
    half.sent(["a"])
    half.arrived(sender("d"))
    assert plan(half, {"d": 50}, {"d": 0}, {"d": [3]}).compute[0].request == "d"


def test_several_choices_of_one_prompt_wait_for_the_first(half):
    first, second = receiver("a"), receiver("b")
    asked(half, first)
    half.arrived(second)
    assert half.matched(second, 0) == (None, False)
    half.received(["a"], failed=())
    assert half.matched(second, 48) == (0, False), "it has the first one's blocks"


def test_an_aborted_one_is_cancelled_once(half):
    request = receiver()
    asked(half, request)
    assert half.finished(request) is False, "vLLM itself keeps its blocks until it is reported"
    assert plan(half).aborted == ("r",)
    assert plan(half).aborted == ()


def test_one_that_has_landed_is_not_cancelled(half):
    request = receiver()
    asked(half, request)
    half.received(["r"], failed=())
    half.finished(request)
    assert plan(half).aborted == ()


def test_a_lost_one_is_computed_here(half):
    request = receiver(prefill=(PREFILL, "tcp://q:2"))
    asked(half, request)
    half.received(["r"], failed=["r"])
    assert half.matched(request, 0) == (0, False), "the other server has no such request"


def test_between_workers_of_ours_the_next_one_is_asked():
    half = SchedulerHalf(BLOCK, 0)
    params = {"handoff": 9, "prefill": [PREFILL, "tcp://q:2"], "exact": True, "label": "outside"}
    request = Request("r", kv_transfer_params={"relevo": params})
    first = asked(half, request)
    assert (first.handoff, first.label) == (9, "outside")
    half.received(["r"], failed=["r"])
    external, _ = half.matched(request, 0)
    half.allocated(request, (200, 201, 202, 203), external)
    (again,) = plan(half).receive
    assert again.prefill == ("tcp://q:2",)
    assert again.handoff not in (9, 0), "a new hand-off"
    assert again.handoff == next_attempt(HandoffParams(9, (PREFILL, "tcp://q:2"), True)).handoff
    half.received(["r"], failed=["r"])
    assert half.matched(request, 0) == (0, False)


def test_what_is_preempted_is_told_before_it_is_overwritten(half):
    half.arrived(sender())
    plan(half, {"s": 20}, {"s": 0}, {"s": [1, 2]})
    assert plan(half, preempted=["s", "other"]).preempted == ("s",)
    half.finished(sender())
    assert plan(half).ended[0].computed is False

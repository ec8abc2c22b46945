import pytest

from relevo.messenger.arrivals import (
    ASK_AGAIN_S,
    CHECK_DEADLINE_S,
    Arrivals,
    Freed,
    Hold,
    LetGo,
    Spoiled,
)
from relevo.messenger.decode_table import Handoff, Send
from relevo.wire.messages import PrefillRequest

WANTED = PrefillRequest(1, 9, "r", (1, 2), 0, (5, 6), 3, 7, verify=True)
GOOD, BAD = b"a" * 16, b"a" * 8 + b"b" * 8


def landed(arrivals, sent=None, arrived=GOOD):
    handoff = Handoff(WANTED, "p", deadline=100.0, repeat_at=1.0)
    return arrivals.landed(handoff, 123, arrived, sent, now=0.0)


def kinds(actions):
    return [type(action) for action in actions]


@pytest.mark.parametrize("told_first", [True, False])
def test_what_is_intact_is_let_go_in_either_order(told_first):
    arrivals = Arrivals(hold=False)
    actions = landed(arrivals, sent=GOOD if told_first else None)
    if not told_first:
        assert actions == []
        assert arrivals.states == {"checking": 1, "held": 0}
        actions = arrivals.told(1, GOOD)
    assert kinds(actions) == [LetGo]
    assert actions[0].arrival.reached_ns == 123
    assert len(arrivals) == 0


def test_what_differs_is_spoiled_and_says_where():
    arrivals = Arrivals(hold=True)
    landed(arrivals)
    (spoiled,) = arrivals.told(1, BAD)
    assert spoiled.layers == (1,)
    assert len(arrivals) == 0


def test_a_held_one_goes_on_when_it_is_released_and_only_once():
    arrivals = Arrivals(hold=True)
    assert arrivals.release(1) == []
    landed(arrivals)
    assert arrivals.release(1) == [], "not checked yet"
    assert kinds(arrivals.told(1, GOOD)) == [Hold]
    assert arrivals.told(1, BAD) == [], "said again, and wrong"
    (go,) = arrivals.release(1)
    assert isinstance(go, LetGo)
    assert go.arrival.held
    assert arrivals.release(1) == []


def test_checksums_that_do_not_come_are_asked_for_and_have_a_deadline():
    arrivals = Arrivals(hold=False)
    landed(arrivals)
    assert arrivals.tick(ASK_AGAIN_S / 2) == []
    assert arrivals.tick(ASK_AGAIN_S) == [Send(9, WANTED)]
    assert arrivals.tick(ASK_AGAIN_S) == []
    (spoiled,) = arrivals.tick(CHECK_DEADLINE_S)
    assert isinstance(spoiled, Spoiled)
    assert spoiled.layers == ()
    assert len(arrivals) == 0


def test_a_held_one_has_no_deadline_and_outlives_its_link():
    arrivals = Arrivals(hold=True)
    landed(arrivals, sent=GOOD)
    assert arrivals.tick(1e9) == []
    assert arrivals.link_lost(9) == []
    assert len(arrivals) == 1


def test_one_that_cannot_be_checked_any_more_is_spoiled():
    arrivals = Arrivals(hold=False)
    landed(arrivals)
    assert arrivals.link_lost(8) == []
    assert kinds(arrivals.link_lost(9)) == [Spoiled]


@pytest.mark.parametrize("sent", [None, GOOD])
def test_a_cancelled_one_is_freed_at_once(sent):
    arrivals = Arrivals(hold=True)
    landed(arrivals, sent)
    assert arrivals.cancel("other") == []
    assert kinds(arrivals.cancel("r")) == [Freed]
    assert len(arrivals) == 0

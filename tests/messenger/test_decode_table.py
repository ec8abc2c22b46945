from relevo.messenger.decode_table import (
    CANCEL_DEADLINE_S,
    DecodeTable,
    Fence,
    Freed,
    Landed,
    Lost,
    Send,
)
from relevo.messenger.slots import Slot, SlotPool
from relevo.wire.messages import Cancel, PrefillRequest

SLOT = Slot(3, 7)


def requested(table=None, handoff=1, link=9, slot=SLOT):
    table = table or DecodeTable()
    message = PrefillRequest(
        handoff, link, f"r{handoff}", (1, 2), 0, (5, 6), slot.number, slot.generation
    )
    assert table.request(message, "p", now=0.0, deadline_s=100.0) == [Send(link, message)]
    return table


def kinds(actions):
    return [type(action) for action in actions]


def test_the_usual_way():
    table = requested()
    assert table.accepted(1, 0.0)
    assert kinds(table.counted(SLOT, 1.0, overshot=False)) == [Landed]
    assert len(table) == 0


def test_it_may_land_before_it_was_accepted():
    table = requested()
    assert kinds(table.counted(SLOT, 1.0, overshot=False)) == [Landed]
    assert table.accepted(1, 0.0) is False


def test_a_count_of_another_generation_is_not_ours():
    table = requested()
    assert table.counted(Slot(3, 6), 1.0, overshot=False) == []
    assert len(table) == 1


def test_rejected_and_failed_free_at_once_because_nothing_can_come():
    assert kinds(requested().rejected(1, "busy")) == [Lost, Freed]
    table = requested()
    table.accepted(1, 0.0)
    assert kinds(table.failed(1, "a write failed")) == [Lost, Freed]


def test_a_cancel_frees_only_when_acknowledged():
    table = requested()
    assert table.cancel("r1", now=1.0) == [Send(9, Cancel(1))]
    assert table.counted(SLOT, 1.0, overshot=False) == [], "too late: its request has gone"
    assert kinds(table.cancel_ack(1)) == [Freed]
    assert table.cancel_ack(1) == [], "a repeated acknowledgement changes nothing"


def test_failing_while_cancelled_is_as_good_as_an_acknowledgement():
    table = requested()
    table.cancel("r1", now=1.0)
    assert kinds(table.failed(1, "a write failed")) == [Freed]


def test_an_acknowledgement_that_nobody_asked_for_frees_nothing():
    table = requested()
    assert table.cancel_ack(1) == []
    assert len(table) == 1


def test_a_deadline_cancels_and_lets_the_request_go_on():
    table = requested()
    assert Lost not in kinds(table.tick(99.0))
    assert kinds(table.tick(100.0)) == [Lost, Send]
    assert table.quarantined_pages == 2
    assert kinds(table.cancel_ack(1)) == [Freed]
    assert table.quarantined_pages == 0


def test_what_is_not_answered_is_said_again_ever_more_rarely():
    table = requested()
    said = [now for now in range(1, 100) if table.tick(float(now))]
    assert said == [1, 3, 7, 15, 31, 63]
    table.cancel("r1", now=99.0)
    again = [(now, table.tick(float(now))) for now in range(100, 109)]
    assert [(now, actions) for now, actions in again if actions] == [
        (100, [Send(9, Cancel(1))]),
        (102, [Send(9, Cancel(1))]),
        (106, [Send(9, Cancel(1))]),
    ]
    assert table.repeats == 9


def test_an_accepted_request_is_said_again_rarely():
    """Its failure may have been told and not heard."""
    table = requested()
    assert table.accepted(1, now=0.5)
    assert [now for now in range(1, 100) if table.tick(float(now))] == [11, 31, 71]


def test_an_unanswered_cancel_fences_and_a_timeout_never_frees():
    table = requested()
    table.cancel("r1", now=0.0)
    actions = table.tick(CANCEL_DEADLINE_S)
    assert kinds(actions) == [Fence]
    assert kinds(table.tick(10_000.0)) == []
    assert len(table) == 1
    assert kinds(table.link_closed(9)) == [Freed]


def test_a_lost_link_quarantines_all_of_its_handoffs_and_no_others():
    table = requested()
    requested(table, handoff=2, slot=Slot(4, 0))
    requested(table, handoff=3, link=8, slot=Slot(5, 0))
    assert kinds(table.link_lost(9, "silent")) == [Fence, Lost, Lost]
    assert table.quarantined_pages == 4
    assert table.failed(1, "said by a fenced peer") == []
    assert table.cancel_ack(2) == []
    assert kinds(table.link_closed(9)) == [Freed, Freed]
    assert len(table) == 1


def test_too_many_parts_is_a_loss_that_waits_for_its_drain():
    table = requested()
    assert kinds(table.counted(SLOT, 1.0, overshot=True)) == [Lost, Send]
    assert kinds(table.cancel_ack(1)) == [Freed]


def test_slots_come_back_last_in_line_with_a_new_generation():
    pool = SlotPool(2)
    first, second = pool.take(), pool.take()
    assert pool.take() is None
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take() == Slot(0, 1)
    assert pool.take() == Slot(1, 1)
    assert SlotPool(1).free == 1


def test_generations_wrap():
    pool = SlotPool(1)
    for _ in range(256):
        pool.give_back(pool.take())
    assert pool.take() == Slot(0, 0)

import pytest

from relevo.errors import LayoutMismatch
from relevo.kv.layout import embedded_layout
from relevo.kv.shards import heads_of_rank
from relevo.messenger import prefill_table
from relevo.messenger.host import PrefillJob
from relevo.messenger.prefill_side import layer_maps
from relevo.messenger.prefill_table import PrefillTable, Release, Send, Start, Stop, Withdraw
from relevo.messenger.slots import Slot
from relevo.wire.messages import Accepted, CancelAck, Failed, Finished, Rejected

JOB = PrefillJob(1, 9, "r", (1, 2, 3), 0, (4,), Slot(0, 0))
DONE = Finished(1, ())


def opened():
    table = PrefillTable()
    assert table.request(JOB, None) == [Start(JOB), Send(9, Accepted(1))]
    return table


def test_the_usual_way():
    table = opened()
    assert table.pushed(1, DONE) == [Send(9, DONE), Release(1)]
    assert len(table) == 0


def test_a_repeated_request_is_answered_and_not_started_again():
    table = opened()
    assert table.request(JOB, None) == [Send(9, Accepted(1))]
    table.pushed(1, DONE)
    assert table.request(JOB, None) == [Send(9, DONE)]


def test_a_refusal_is_remembered():
    table = PrefillTable()
    assert table.request(JOB, "too long") == [Send(9, Rejected(1, "too long"))]
    assert table.request(JOB, None) == [Send(9, Rejected(1, "too long"))]


def test_a_cancel_waits_for_the_drain():
    table = opened()
    assert table.cancel(1, 9) == [Withdraw(1)]
    assert table.cancel(1, 9) == [], "asked again while draining"
    assert table.drained(1) == [Release(1), Send(9, CancelAck(1))]
    assert table.cancel(1, 9) == [Send(9, CancelAck(1))]


def test_a_cancel_that_overtakes_its_request_keeps_it_from_ever_starting():
    table = PrefillTable()
    assert table.cancel(1, 9) == [Send(9, CancelAck(1))]
    assert table.request(JOB, None) == [Send(9, CancelAck(1))]
    assert len(table) == 0


def test_a_cancel_of_what_is_finished_is_acknowledged():
    table = opened()
    table.pushed(1, DONE)
    assert table.cancel(1, 9) == [Send(9, CancelAck(1))]


def test_a_failed_write_stops_the_job_and_is_told_once_drained():
    table = opened()
    assert table.failed(1, "gone") == [Stop(1), Release(1), Send(9, Failed(1, "gone"))]
    assert table.failed(1, "gone") == []


def test_a_job_that_the_host_gave_up_is_told_as_failed_once_drained():
    table = opened()
    assert table.abandon(1, "out of memory") == [Withdraw(1)]
    assert table.drained(1) == [Release(1), Send(9, Failed(1, "out of memory"))]


def test_a_cancel_of_a_job_that_was_given_up_is_acknowledged():
    table = opened()
    table.abandon(1, "out of memory")
    assert table.cancel(1, 9) == []
    assert table.drained(1) == [Release(1), Send(9, CancelAck(1))]


def test_finishing_while_withdrawn_still_waits_for_the_drain():
    table = opened()
    table.cancel(1, 9)
    assert table.pushed(1, DONE) == []
    assert table.drained(1) == [Release(1), Send(9, CancelAck(1))]


def test_a_lost_link_releases_only_when_it_has_closed():
    table = opened()
    assert table.link_lost(9) == [Withdraw(1)]
    assert table.drained(1) == []
    assert table.failed(1, "flushed") == []
    assert table.link_closed(9) == [Release(1)]
    assert table.link_closed(9) == []


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(prefill_table, "REMEMBERED", 3)
    table = PrefillTable()
    for handoff in range(10):
        table.cancel(handoff, 9)
    assert table.request(JOB, None)[0] == Start(JOB), "the oldest tombstones are gone"


def test_pools_that_do_not_fit_are_refused_before_any_write():
    def pool(page_tokens):
        return embedded_layout(
            layers=2, pages=4, page_tokens=page_tokens, heads=heads_of_rank(0, 1, 2),
            head_dim=8, dtype="float32", dtype_bytes=4,
        )  # fmt: skip

    assert len(layer_maps(pool(16), pool(16))) == 2
    with pytest.raises(LayoutMismatch, match="page_tokens"):
        layer_maps(pool(16), pool(32))

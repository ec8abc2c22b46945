"""The faulty driver around both others: whatever it does, the engine's promises hold."""

import time

import numpy as np
import pytest

from relevo.transfer.engine import TransferEngine, TransferEvent
from relevo.worker.faults import parse_faults

from .conftest import DEADLINE_S, LAYERS, PAGE, PAGES, Pair, Side, layer_maps, push

Kind = TransferEvent.Kind


class FaultyPair(Pair):
    """A source whose writes misbehave, linked to a sound target."""

    def __init__(self, transport, spec):
        self.source, self.target = Side(transport), Side(transport)
        self.source.engine.stop()
        self.source.engine = TransferEngine(transport, faults=parse_faults(spec).writes)
        self.source.pool = self.source.engine.allocate("pool", len(self.target.pool))
        self.source.engine.start()
        self.connect()

    def connect(self):
        self.link = self.target.engine.expect_link()
        self.source.engine.connect(
            self.link, self.target.engine.address(), layer_maps(), DEADLINE_S
        )
        self.source.wait(Kind.LINK_UP)


SCATTERED = [(page, PAGES - 1 - page) for page in range(PAGES)]


def test_late_writes_that_overtake_each_other_and_stalls_lose_nothing(transport):
    pair = FaultyPair(transport, "seed=3,delay=3000,stall=0.02")
    pair.source.pool[:] = 9
    pair.target.engine.arm(5, 1, LAYERS * PAGES)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=SCATTERED))
    assert not pair.target.counter().overshot
    assert (pair.target.pool == 9).all()
    pair.source.wait(Kind.PUSHED, handoff=1)
    assert pair.source.engine.statistics()["retries"] > 0
    pair.stop()


def test_a_failed_write_is_told_only_when_the_others_have_drained(transport):
    pair = FaultyPair(transport, "seed=4,delay=20000,error=0.05")
    pair.target.engine.arm(5, 1, LAYERS * PAGES)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=SCATTERED))
    assert "on purpose" in pair.source.wait(Kind.FAILED, handoff=1).error
    counted = pair.target.engine.counted(5)
    time.sleep(0.1)
    assert pair.target.engine.counted(5) == counted < LAYERS * PAGES
    pair.stop()


def test_a_cut_link_is_told_and_a_new_one_works(transport):
    pair = FaultyPair(transport, "seed=5,cut=0.01")
    for handoff in range(1, 200):
        pair.target.engine.arm(handoff, 1, LAYERS * PAGES)
        pair.source.engine.open_handoff(handoff)
        pair.step(push(handoff, pair.link, slot=handoff, layered=SCATTERED))
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            pair.source.seen += pair.source.engine.poll_events()
            kinds = {e.kind for e in pair.source.seen if e.handoff in (0, handoff)}
            if Kind.PUSHED in kinds or Kind.LINK_DOWN in kinds:
                break
        if Kind.LINK_DOWN in kinds:
            break
    else:
        pytest.fail("the link was never cut")
    pair.source.engine.close_link(pair.link)
    pair.source.wait(Kind.LINK_CLOSED, link=pair.link)
    pair.source.wait(Kind.FAILED, handoff=handoff)
    pair.connect()
    pair.stop()


def test_other_bytes_arrive_and_nothing_tells(transport):
    """What `--verify-kv` is for."""
    pair = FaultyPair(transport, "seed=6,corrupt=0.5")
    pair.source.pool[:] = np.arange(len(pair.source.pool)) // PAGE
    pair.target.engine.arm(5, 1, LAYERS * PAGES)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=SCATTERED))
    assert not pair.target.counter().overshot
    pair.source.wait(Kind.PUSHED, handoff=1)
    wrong = sum(
        (pair.target.page(layer, there) != pair.source.page(layer, here)).any()
        for layer in range(LAYERS)
        for here, there in SCATTERED
    )
    assert 0 < wrong < LAYERS * PAGES
    pair.stop()


def test_failed_writes_are_counted_by_kind_and_none_stays_in_flight(transport):
    pair = FaultyPair(transport, "seed=4,delay=20000,error=0.3")
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=SCATTERED))
    pair.source.wait(Kind.FAILED, handoff=1)
    errors = pair.source.engine.errors()
    assert errors["write:EIO"] > 0
    assert pair.source.engine.in_flight == 0
    pair.stop()


def test_a_slow_link_takes_as_long_as_its_pace_says(transport):
    """No less; how much more is the machine's affair."""
    size = LAYERS * PAGES * PAGE
    pair = FaultyPair(transport, f"rate={size / 1e6 / 0.2}")  # all of it in 0.2 s
    pair.source.pool[:] = 5
    pair.target.engine.arm(5, 1, LAYERS * PAGES)
    pair.source.engine.open_handoff(1)
    begin = time.monotonic()
    pair.step(push(1, pair.link, layered=SCATTERED))
    pair.target.counter()
    assert time.monotonic() - begin >= 0.19
    assert (pair.target.pool == 5).all()
    pair.stop()

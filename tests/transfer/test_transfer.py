"""The native core, over both drivers, in one process; test_processes.py has it across two."""

import time

import numpy as np
import pytest

from relevo.errors import ConfigError
from relevo.transfer.engine import SLOTS, Copy, LayerMap, TransferEngine, TransferEvent

from .conftest import DEADLINE_S, LAYERS, PAGE, PAGES, Pair, Side, layer_maps, push

Kind = TransferEvent.Kind


def fill(side, seed=1):
    side.pool[:] = np.random.default_rng(seed).integers(0, 256, len(side.pool), dtype=np.uint8)


def test_pages_land_where_they_should_and_nowhere_else(pair):
    fill(pair.source)
    pairs = [(3, 10), (4, 11), (5, 12), (20, 2)]
    pair.target.engine.arm(5, 1, LAYERS * len(pairs))
    pair.source.engine.open_handoff(77)
    pair.step(push(77, pair.link, layered=pairs))
    done = pair.target.counter()
    assert (done.slot, done.generation, done.overshot) == (5, 1, False)
    for layer in range(LAYERS):
        for source, destination in pairs:
            np.testing.assert_array_equal(
                pair.target.page(layer, destination), pair.source.page(layer, source)
            )
        untouched = set(range(PAGES)) - {b for _, b in pairs}
        assert not any(pair.target.page(layer, p).any() for p in untouched)


def test_consecutive_pages_travel_in_one_write(pair):
    pairs = [(3, 10), (4, 11), (5, 12), (20, 2)]
    pair.target.engine.arm(5, 1, LAYERS * 4)
    pair.source.engine.open_handoff(77)
    pair.step(push(77, pair.link, layered=pairs))
    event = pair.source.wait(Kind.PUSHED, handoff=77)
    assert (event.writes, event.parts, event.bytes) == (2 * LAYERS, 4 * LAYERS, 4 * LAYERS * PAGE)
    assert len(event.computed_ns) == len(event.posted_ns) == LAYERS
    assert event.last


def test_pieces_of_pages_go_to_their_offsets(transport):
    half = PAGE // 2
    pair = Pair(transport, copies=[Copy(0, half, half)])
    fill(pair.source)
    pair.target.engine.arm(5, 1, LAYERS * 2)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0), (1, 1)]))
    pair.target.counter()
    for layer in range(LAYERS):
        np.testing.assert_array_equal(
            pair.target.page(layer, 1)[half:], pair.source.page(layer, 1)[:half]
        )
        assert not pair.target.page(layer, 1)[:half].any()
    pair.stop()


def test_a_layer_is_written_only_when_it_is_computed(pair):
    fill(pair.source)
    pair.target.engine.arm(5, 1, LAYERS)
    pair.source.engine.open_handoff(1)
    engine = pair.source.engine
    engine.open_step([push(1, pair.link, layered=[(0, 0)])])
    engine.bump()
    engine.bump()
    deadline = time.monotonic() + DEADLINE_S
    while pair.target.engine.counted(5) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert pair.target.engine.counted(5) == 2
    assert not pair.target.page(2, 0).any(), "the third layer has not been computed"
    engine.bump()
    engine.end_step(True)
    pair.target.counter()


def test_ready_pages_need_no_forward_pass(pair):
    pair.target.engine.arm(5, 1, 2 * LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, ready=[(0, 0), (1, 5)]), layers=0)
    pair.target.counter()


def test_a_withdrawn_handoff_drains_and_is_never_written_again(pair):
    fill(pair.source)
    pair.target.engine.arm(5, 1, 2 * LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0)], last=False))
    pair.source.wait(Kind.PUSHED, handoff=1)
    pair.source.engine.withdraw(1)
    pair.source.wait(Kind.DRAINED, handoff=1)
    before = pair.target.pool.copy()
    pair.step(push(1, pair.link, layered=[(1, 1)]))  # a late step of the engine loop
    time.sleep(0.05)
    np.testing.assert_array_equal(pair.target.pool, before)
    assert pair.source.engine.statistics()["refused_pushes"] == 1


def test_withdrawing_in_mid_step_stops_the_remaining_layers(pair):
    pair.target.engine.arm(5, 1, LAYERS)
    pair.source.engine.open_handoff(1)
    engine = pair.source.engine
    engine.open_step([push(1, pair.link, layered=[(0, 0)])])
    engine.bump()
    engine.withdraw(1)
    pair.source.wait(Kind.DRAINED, handoff=1)
    engine.bump()
    engine.bump()
    engine.end_step(True)
    time.sleep(0.05)
    assert pair.target.engine.counted(5) <= 1


def test_withdrawing_an_unknown_handoff_is_answered(pair):
    pair.source.engine.withdraw(404)
    pair.source.wait(Kind.DRAINED, handoff=404)


def test_an_aborted_step_fails_its_handoffs(pair):
    pair.target.engine.arm(5, 1, LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0)]), commit=False, layers=1)
    assert "aborted" in pair.source.wait(Kind.FAILED, handoff=1).error


def test_committing_before_the_last_layer_is_an_error(pair):
    pair.target.engine.arm(5, 1, LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0)]), layers=LAYERS - 1)
    assert "before its last layer" in pair.source.wait(Kind.FAILED, handoff=1).error


def test_an_older_generation_is_dropped_and_counted(pair):
    pair.target.engine.arm(5, 2, LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, generation=1, layered=[(0, 0)]))
    pair.source.wait(Kind.PUSHED, handoff=1)
    time.sleep(0.05)
    assert pair.target.engine.counted(5) == 0
    assert pair.target.engine.statistics()["stale_immediates"] == LAYERS


def test_more_parts_than_expected_is_an_error(pair):
    pair.target.engine.arm(5, 1, 2)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0), (1, 1), (2, 2)]))
    assert pair.target.counter().overshot


def test_counters_refuse_what_is_out_of_range():
    side = Side("local")
    assert not side.engine.arm(SLOTS, 0, 1)
    assert not side.engine.arm(0, 256, 1)
    assert not side.engine.arm(0, 0, 0)
    assert side.engine.arm(0, 0, 1)
    assert not side.engine.arm(0, 1, 1), "armed already"
    side.engine.disarm(0)
    assert side.engine.arm(0, 1, 1)
    side.engine.stop()


def test_a_closed_link_takes_nothing_more(pair):
    fill(pair.source)
    pair.target.engine.close_link(pair.link)
    pair.target.wait(Kind.LINK_CLOSED, link=pair.link)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, 0)]))
    pair.source.wait(Kind.FAILED, handoff=1)
    assert not pair.target.pool.any()


def test_the_source_hears_that_its_link_was_closed(pair):
    pair.target.engine.close_link(pair.link)
    pair.source.wait(Kind.LINK_DOWN, link=pair.link)
    pair.source.engine.close_link(pair.link)
    pair.source.wait(Kind.LINK_CLOSED, link=pair.link)


def test_a_link_that_nobody_expects_is_refused(transport):
    source, target = Side(transport), Side(transport)
    source.engine.connect(12345, target.engine.address(), layer_maps(), DEADLINE_S)
    assert source.wait(Kind.LINK_DOWN, link=12345).error
    source.engine.stop()
    target.engine.stop()


def test_a_link_id_lets_in_once(pair):
    second = Side(pair.source.engine.transport)
    second.engine.connect(pair.link, pair.target.engine.address(), layer_maps(), DEADLINE_S)
    second.wait(Kind.LINK_DOWN, link=pair.link)
    second.engine.stop()


def test_an_address_that_is_none_fails_cleanly(transport):
    side = Side(transport)
    side.engine.connect(9, b"nonsense", layer_maps(), 1.0)
    assert side.wait(Kind.LINK_DOWN, link=9).error
    side.engine.stop()


def test_a_destination_outside_the_region_fails_and_writes_nothing(pair):
    pair.target.engine.arm(5, 1, LAYERS)
    pair.source.engine.open_handoff(1)
    pair.step(push(1, pair.link, layered=[(0, PAGES * LAYERS)]))
    assert "outside" in pair.source.wait(Kind.FAILED, handoff=1).error
    assert not pair.target.pool.any()


def test_many_handoffs_at_once_all_land(pair):
    fill(pair.source)
    for handoff in range(16):
        pair.target.engine.arm(handoff, 0, 4 * LAYERS)
        pair.source.engine.open_handoff(handoff)
    pair.step(
        *(
            push(h, pair.link, slot=h, generation=0,
                 layered=[(4 * h + i, 63 - 4 * h - i) for i in range(4)])
            for h in range(16)
        )
    )  # fmt: skip
    landed = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(landed) < 16 and time.monotonic() < deadline:
        landed |= {e.slot for e in pair.target.engine.poll_counters()}
    assert landed == set(range(16))
    for page in range(64):
        np.testing.assert_array_equal(pair.target.page(1, 63 - page), pair.source.page(1, page))


def test_nothing_spins_when_idle(pair):
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.02


def test_an_unknown_transport_names_what_there_is():
    with pytest.raises(ConfigError, match="local, tcp"):
        TransferEngine("carrier-pigeon")


def test_a_push_joins_a_step_that_is_under_way(pair):
    """Whoever asks in mid-step misses none of its layers."""
    fill(pair.source)
    pair.target.engine.arm(5, 1, 3 * LAYERS)
    pair.source.engine.open_handoff(1)
    engine = pair.source.engine
    engine.open_step([])
    engine.bump()
    engine.add_pushes([push(1, pair.link, ready=[(7, 7)], layered=[(0, 0), (1, 1)])])
    deadline = time.monotonic() + DEADLINE_S
    while pair.target.engine.counted(5) < LAYERS + 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert pair.target.engine.counted(5) == LAYERS + 2, "one page in all layers, two in the first"
    engine.bump()
    engine.bump()
    engine.end_step(True)
    pair.target.counter()
    for page in (0, 1, 7):
        for layer in range(LAYERS):
            np.testing.assert_array_equal(
                pair.target.page(layer, page), pair.source.page(layer, page)
            )


def test_complete_pages_are_pushed_between_steps(pair):
    fill(pair.source)
    pair.step()
    pair.target.engine.arm(5, 1, 2 * LAYERS)
    pair.source.engine.open_handoff(1)
    pair.source.engine.add_pushes([push(1, pair.link, ready=[(0, 0), (1, 5)])])
    pair.target.counter()
    pair.source.wait(Kind.PUSHED, handoff=1)


def test_memory_of_others_becomes_a_region_in_its_place(transport):
    """As vLLM's caches: allocated elsewhere, at odd addresses, and used there all the time."""
    sizes = LAYERS * [PAGES * PAGE]
    caches = [np.full(size + 64, 7, dtype=np.uint8)[64 - 8 :][:size] for size in sizes]
    source, target = Side(transport), TransferEngine(transport)
    starts = target.adopt("caches", [(cache.ctypes.data, cache.nbytes) for cache in caches])
    assert all((cache == 7).all() for cache in caches), "what was there stays"
    target.start()
    for start, cache in zip(starts, caches, strict=True):
        cache[0] = 9
        assert target.memory(0)[start] == 9
    fill(source)
    link = target.expect_link()
    maps = [
        LayerMap(0, 0, layer * PAGES * PAGE, PAGE, start, PAGE, [Copy(0, 0, PAGE)])
        for layer, start in enumerate(starts)
    ]
    source.engine.connect(link, target.address(), maps, DEADLINE_S)
    source.wait(Kind.LINK_UP)
    target.arm(5, 1, LAYERS)
    source.engine.open_handoff(1)
    source.engine.add_pushes([push(1, link, ready=[(3, 60)])])
    source.wait(Kind.PUSHED, handoff=1)
    deadline = time.monotonic() + DEADLINE_S
    while not target.poll_counters():
        assert time.monotonic() < deadline
    for layer, cache in enumerate(caches):
        landed = cache.reshape(PAGES, PAGE)
        np.testing.assert_array_equal(landed[60], source.page(layer, 3))
        assert (landed[59] == 7).all()
    source.engine.stop()
    target.stop()


def test_memory_that_shares_a_page_becomes_a_region_together():
    memory = np.full(4 * PAGE, 3, dtype=np.uint8)
    base = memory.ctypes.data
    begin = -base % PAGE + 100
    spans = [(base + begin + 600, PAGE), (base + begin, 500), (base + begin + 700 + PAGE, 100)]
    engine = TransferEngine("local")
    starts = engine.adopt("caches", spans)
    for value, (start, (address, length)) in enumerate(zip(starts, spans, strict=True)):
        memory[address - base : address - base + length] = value + 10
        assert (engine.memory(0)[start : start + length] == value + 10).all()

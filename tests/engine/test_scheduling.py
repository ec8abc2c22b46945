import pytest

from relevo.engine.page_pool import PagePool
from relevo.engine.scheduler import Scheduler
from relevo.engine.sequence import Phase, Sequence
from relevo.errors import ConfigError
from relevo.kv.hashes import page_hashes
from relevo.types import FinishReason, Sampling

from .conftest import greedy, make_engine, run_all


def scheduler(pages=16, **settings):
    defaults = {"page_tokens": 4, "step_tokens": 8, "max_running": 8}
    return Scheduler(PagePool(pages), **{**defaults, **settings})


def test_pages_are_found_by_hash_only_once_published():
    pool = PagePool(4)
    pages = pool.allocate(2)
    hashes = page_hashes(list(range(8)), 4)
    assert pool.match(hashes) == []
    pool.publish(pages[0], hashes[0])
    assert pool.match(hashes) == [pages[0]]
    pool.release([pages[0]])
    pool.release(pages)
    assert pool.available == 4
    assert pool.cached == 1


def test_the_least_recently_released_is_evicted_first_and_tails_before_heads():
    pool = PagePool(4)
    hashes = page_hashes(list(range(16)), 4)
    pages = pool.allocate(4)
    for page, page_hash in zip(pages, hashes, strict=True):
        pool.publish(page, page_hash)
    pool.release(pages)
    pool.allocate(2)
    assert pool.match(hashes) == pages[:2]


def test_a_shared_page_is_free_only_when_the_last_lets_go():
    pool = PagePool(2)
    (page,) = pool.allocate(1)
    pool.publish(page, b"h")
    assert pool.match([b"h"]) == [page]
    pool.release([page])
    assert pool.owned == 1
    pool.release([page])
    assert pool.owned == 0


def test_prompts_are_cut_to_the_budget_and_decodes_go_first():
    s = scheduler()
    decoding, long = greedy("a", range(5), 4), greedy("b", range(20), 4)
    s.add(decoding)
    s.add(long)
    s.admit()
    step = s.schedule()
    assert [(c.sequence.id, c.first, c.last) for c in step.chunks] == [("a", 0, 4), ("b", 0, 4)]
    decoding.computed = 4
    long.computed = 4
    step = s.schedule()
    assert step.decodes == (decoding,)
    assert [(c.first, c.last) for c in step.chunks] == [(4, 11)]


def test_a_remote_prompt_waits_for_its_kv_and_then_decodes():
    s = scheduler()
    sequence = Sequence("r", list(range(9)), Sampling(4), remote=True)
    s.add(sequence)
    assert s.admit() == [sequence]
    assert s.schedule() is None
    s.kv_landed(sequence)
    assert s.schedule().decodes == (sequence,)


def test_a_remote_prompt_with_little_left_is_computed_here():
    s = scheduler(local_prefill_tokens=8)
    sequence = Sequence("r", list(range(9)), Sampling(4), remote=True)
    s.add(sequence)
    assert s.admit() == []
    assert s.schedule().chunks


def test_waiting_handoffs_leave_every_running_sequence_its_next_page():
    """Else prompts that are computed elsewhere would take the pages that decoding needs."""
    s = scheduler(pages=12)
    running = [greedy(str(i), range(4), 20) for i in range(2)]
    for sequence in running:
        s.add(sequence)
    s.admit()
    for i in range(8):
        s.add(Sequence(f"r{i}", list(range(9)), Sampling(4), remote=True))
    awaiting = s.admit()
    assert awaiting
    assert s.pool.available >= len(running)
    for sequence in running:
        sequence.computed = 8
        sequence.tokens += [0] * 5
    assert s.schedule().decodes == tuple(running)
    assert s.preemptions == 0


def test_a_lost_handoff_keeps_its_pages_apart_and_starts_again_on_fresh_ones():
    s = scheduler(pages=8)
    sequence = Sequence("r", list(range(9)), Sampling(4), remote=True)
    s.add(sequence)
    s.admit()
    at_risk = s.kv_failed(sequence, remote=False)
    assert len(at_risk) == 4
    assert s.admit() == []
    assert sequence.phase is Phase.RUNNING
    assert not set(sequence.pages) & set(at_risk)
    s.pool.release(at_risk)


def test_when_pages_run_out_the_youngest_gives_way_and_all_end(checkpoint, tmp_path):
    folder, _ = checkpoint
    roomy = make_engine(folder, tmp_path)
    tight = make_engine(folder, tmp_path, pool_bytes=roomy.layout.groups[0].page_bytes * 3 * 8)
    assert tight.layout.pages == 8
    expected = [greedy(str(i), range(i, i + 20), 80) for i in range(4)]
    run_all(roomy, expected)
    squeezed = [greedy(str(i), range(i, i + 20), 80) for i in range(4)]
    run_all(tight, squeezed)
    assert [s.tokens for s in squeezed] == [s.tokens for s in expected]
    assert tight.scheduler.preemptions > 0
    assert tight.pool.owned == 0


def test_a_prompt_seen_before_is_not_computed_again(checkpoint, tmp_path):
    folder, _ = checkpoint
    engine = make_engine(folder, tmp_path)
    first, second = greedy("a", range(50), 5), greedy("b", range(50), 5)
    run_all(engine, [first])
    run_all(engine, [second])
    assert second.reused == 3
    assert second.tokens == first.tokens


@pytest.mark.parametrize(("stop", "reason"), [((), FinishReason.LENGTH), (None, FinishReason.STOP)])
def test_generation_ends_by_length_or_stop_token(checkpoint, tmp_path, stop, reason):
    folder, _ = checkpoint
    engine = make_engine(folder, tmp_path)
    probe = greedy("p", range(5), 3)
    run_all(engine, [probe])
    ids = (probe.tokens[5],) if stop is None else stop
    sequence = Sequence("s", list(range(5)), Sampling(3, temperature=0, stop_token_ids=ids))
    run_all(engine, [sequence])
    assert sequence.finish is reason
    assert sequence.generated == (1 if stop is None else 3)


def test_generation_ends_at_the_context(checkpoint, tmp_path):
    folder, _ = checkpoint
    engine = make_engine(folder, tmp_path, pool_bytes=1 << 17)
    sequence = greedy("s", range(20), 10_000)
    run_all(engine, [sequence])
    assert len(sequence.tokens) == engine.context
    assert sequence.finish is FinishReason.LENGTH


def test_a_pool_without_room_says_how_much_it_needs(checkpoint, tmp_path):
    folder, _ = checkpoint
    with pytest.raises(ConfigError, match="kv-memory: 100 bytes hold 0 pages"):
        make_engine(folder, tmp_path, pool_bytes=100)

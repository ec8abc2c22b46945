import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.kv.allocator import PageAllocator


def test_prefers_one_run_even_where_smaller_holes_are_free():
    allocator = PageAllocator(16)
    pages = allocator.allocate(16)
    allocator.release([0, 1, 5, 6, 7, 8, 12])
    assert allocator.allocate(4) == [5, 6, 7, 8]
    assert allocator.allocate(2) == [0, 1]
    assert pages == list(range(16))


def test_takes_longest_runs_first_when_none_is_long_enough():
    allocator = PageAllocator(8)
    allocator.allocate(8)
    allocator.release([0, 2, 3, 4, 6])
    assert allocator.allocate(4) == [2, 3, 4, 0]


def test_refuses_what_it_does_not_have_and_changes_nothing():
    allocator = PageAllocator(3)
    assert allocator.allocate(4) is None
    assert allocator.free == 3


def test_a_page_released_twice_is_an_error():
    allocator = PageAllocator(4)
    allocator.allocate(4)
    allocator.release([2])
    with pytest.raises(ValueError, match="page 2 is free already"):
        allocator.release([2])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_never_hands_out_a_page_twice_and_loses_none(moves):
    allocator = PageAllocator(24)
    held: list[list[int]] = []
    for take, count in moves:
        if take:
            pages = allocator.allocate(count)
            if pages is not None:
                assert len(set(pages)) == count
                held.append(pages)
        elif held:
            allocator.release(held.pop(count % len(held)))
        owned = [page for pages in held for page in pages]
        assert len(owned) == len(set(owned))
        assert allocator.free == 24 - len(owned)
    for pages in held:
        allocator.release(pages)
    assert allocator.allocate(24) == list(range(24)), "all runs have grown together again"

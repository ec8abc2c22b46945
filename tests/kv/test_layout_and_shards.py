import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.errors import LayoutMismatch
from relevo.kv.copy_plan import copies_for
from relevo.kv.hashes import page_hashes, pages_for
from relevo.kv.layout import check_compatible, embedded_layout
from relevo.kv.shards import heads_of_rank, replica_sets


def layout(*, rank=0, ranks=1, kv_heads=4, page_tokens=16, dtype="bfloat16"):
    return embedded_layout(
        layers=3,
        pages=10,
        page_tokens=page_tokens,
        heads=heads_of_rank(rank, ranks, kv_heads),
        head_dim=8,
        dtype=dtype,
        dtype_bytes=2,
    )


def test_layers_and_pages_lie_back_to_back():
    plain = layout()
    (group,) = plain.groups
    assert group.page_bytes == 4 * 2 * 16 * 8 * 2
    assert group.layer_offsets == (0, 10 * group.page_bytes, 20 * group.page_bytes)
    assert plain.bytes == 30 * group.page_bytes


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (layout(page_tokens=32), ("page_tokens", "16", "32")),
        (layout(dtype="float16"), ("interior", "bfloat16", "float16")),
        (layout(kv_heads=2), ("KV heads", "4", "2")),
    ],
)
def test_a_mismatch_names_both_values(other, names):
    with pytest.raises(LayoutMismatch) as error:
        check_compatible(layout(), other)
    for name in names:
        assert name in str(error.value)


def test_heads_are_split_or_replicated_in_groups():
    assert [heads_of_rank(r, 2, 8).first for r in range(2)] == [0, 4]
    assert [heads_of_rank(r, 8, 4).first for r in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert replica_sets(8, 4) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    with pytest.raises(ValueError, match="3 ranks neither divide nor are a multiple of 8"):
        heads_of_rank(0, 3, 8)


@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8, 16]))
def test_every_head_arrives_once_at_every_rank_that_holds_it(source_ranks, destination_ranks):
    kv_heads, head_bytes = 8, 4
    ranks = replica_sets(source_ranks, kv_heads)[0]
    sources = {r: heads_of_rank(r, source_ranks, kv_heads) for r in ranks}
    for rank in range(destination_ranks):
        wanted = heads_of_rank(rank, destination_ranks, kv_heads)
        filled = [None] * wanted.count
        for copy in copies_for(sources, rank, wanted, head_bytes):
            for i in range(copy.length // head_bytes):
                place = copy.destination_offset // head_bytes + i
                assert filled[place] is None
                held = sources[copy.source_rank]
                filled[place] = held.first + copy.source_offset // head_bytes + i
        assert filled == list(range(wanted.first, wanted.end))


def test_a_head_that_no_source_holds_is_an_error():
    half = {0: heads_of_rank(0, 2, 4)}
    with pytest.raises(ValueError, match="no source rank holds KV head 2"):
        copies_for(half, 0, heads_of_rank(0, 1, 4), 4)


def test_a_page_hash_depends_on_everything_before_it():
    a = page_hashes(list(range(48)), 16)
    b = page_hashes([99, *range(1, 48)], 16)
    assert len(a) == 3
    assert not set(a) & set(b)
    assert page_hashes(list(range(47)), 16) == a[:2]
    assert [pages_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]

import numpy as np
import pytest
import xxhash

from relevo.kv.layout import embedded_layout
from relevo.kv.shards import heads_of_rank
from relevo.messenger.checksums import differing_layers, layer_checksums

LAYOUT = embedded_layout(
    layers=3, pages=10, page_tokens=4, heads=heads_of_rank(0, 1, 2), head_dim=8, dtype="x",
    dtype_bytes=2,
)  # fmt: skip
PAGE = LAYOUT.groups[0].page_bytes


@pytest.fixture
def memory():
    return np.random.default_rng(1).integers(0, 256, LAYOUT.bytes, dtype=np.uint8)


@pytest.mark.parametrize("pages", [[], [4], [2, 3, 4], [9, 0, 1, 5], [1, 1]])
def test_each_layer_s_pages_are_hashed_in_order(memory, pages):
    by_page = memory.reshape(3, 10, PAGE)
    expected = [xxhash.xxh3_64(by_page[layer][pages].tobytes()).digest() for layer in range(3)]
    assert layer_checksums(memory, LAYOUT, pages) == b"".join(expected)


def test_one_wrong_byte_is_found_and_its_layer_named(memory):
    sent = layer_checksums(memory, LAYOUT, [3, 7])
    memory[(10 + 7) * PAGE + 5] ^= 1
    assert differing_layers(sent, layer_checksums(memory, LAYOUT, [3, 7])) == [1]
    assert differing_layers(sent, layer_checksums(memory, LAYOUT, [7, 3])) == [0, 1, 2]


def test_another_number_of_layers_is_all_wrong():
    assert differing_layers(b"", b"x" * 16) == [0, 1]
    assert differing_layers(b"x" * 16, b"x" * 16) == []

"""The CPU kernels against the same thing in plain torch."""

import pytest
import torch

import relevo.engine.attention
from relevo.engine.attention import (
    AttentionBatch,
    CpuAttention,
    Segment,
    TorchAttention,
    causal_mask,
)
from relevo.engine.models.config import ModelConfig
from relevo.engine.models.rope import rope_tables
from relevo.kv.layout import embedded_layout
from relevo.kv.shards import heads_of_rank

PAGES, PAGE_TOKENS = 24, 8


def config(heads, kv_heads, head_dim):
    return ModelConfig(
        architecture="llama", layers=2, hidden=heads * head_dim, intermediate=8, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, vocabulary=16, context=256, norm_eps=1e-5,
        rope_theta=10000.0, rope_scaling=None, tied_embeddings=True, qkv_bias=False, qk_norm=False,
    )  # fmt: skip


def backend(kind, model, dtype, pool):
    layout = embedded_layout(
        layers=2, pages=PAGES, page_tokens=PAGE_TOKENS, heads=heads_of_rank(0, 1, model.kv_heads),
        head_dim=model.head_dim, dtype="x", dtype_bytes=dtype.itemsize,
    )  # fmt: skip
    cos, sin = rope_tables(model, 256, torch.device("cpu"))
    return kind(model, layout, pool, cos, sin)


@pytest.mark.parametrize(
    ("dtype", "native"),
    [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)],
)
@pytest.mark.parametrize("shape", [(4, 2, 16), (9, 3, 64), (2, 2, 40), (8, 1, 128)])
def test_kernels_equal_torch(dtype, native, shape, monkeypatch):
    monkeypatch.setattr(relevo.engine.attention, "bfloat16_is_native", lambda: native)
    torch.manual_seed(3)
    model = config(*shape)
    pool = torch.randn(2, PAGES, model.kv_heads, 2, PAGE_TOKENS, model.head_dim).to(dtype)
    pools = pool.clone(), pool.clone()
    pages = torch.randperm(PAGES, dtype=torch.int32)
    # Two rows that decode after 20 and 7 tokens, and a chunk of 11 after a history of 13.
    tables = torch.stack([pages[:3], torch.tensor([pages[3], 0, 0], dtype=torch.int32)])
    chunk = pages[4:7]
    places = [(tables[0], 20), (tables[1], 7), *((chunk, p) for p in range(13, 24))]
    slots = [int(t[p // PAGE_TOKENS]) * PAGE_TOKENS + p % PAGE_TOKENS for t, p in places]
    batch = AttentionBatch(
        rows=2,
        kept=2,
        positions=torch.tensor([p for _, p in places]),
        slots=torch.tensor(slots),
        page_table=tables.contiguous(),
        lengths=torch.tensor([21, 8], dtype=torch.int32),
        segments=(Segment(2, 13, 13, chunk, causal_mask(11, 13, dtype, torch.device("cpu"))),),
    )
    width = (model.heads + 2 * model.kv_heads) * model.head_dim
    qkv = torch.randn(16, width).to(dtype)  # 13 tokens and padding
    copies = qkv.clone(), qkv.clone()
    outs = []
    for kind, pool_, qkv_ in zip((CpuAttention, TorchAttention), pools, copies, strict=True):
        attention = backend(kind, model, dtype, pool_)
        attention.store(1, qkv_, batch)
        outs.append(attention.attend(1, qkv_, batch))
    bound = {"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(copies[0], copies[1], **bound)
    torch.testing.assert_close(pools[0], pools[1], **bound)
    torch.testing.assert_close(outs[0], outs[1], **bound)
    assert torch.equal(pools[0][0], pool[0]), "the other layer is untouched"
    assert torch.equal(copies[0][13:], qkv[13:]), "padding is neither rotated nor stored"
    assert not outs[0][13:].any()


def test_two_threads_give_what_one_gives():
    torch.manual_seed(4)
    model = config(8, 4, 64)
    pool = torch.randn(2, PAGES, 4, 2, PAGE_TOKENS, 64)
    attention = backend(CpuAttention, model, torch.float32, pool)
    table = torch.arange(PAGES, dtype=torch.int32).repeat(8, 1)
    lengths = torch.full((8,), PAGES * PAGE_TOKENS, dtype=torch.int32)
    empty = torch.zeros(0, dtype=torch.int64)
    batch = AttentionBatch(8, 8, empty, empty, table, lengths, ())
    qkv = torch.randn(8, 16 * 64)
    before = torch.get_num_threads()
    outs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outs.append(attention.attend(0, qkv, batch))
    torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])

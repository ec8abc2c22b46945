"""The product of a few rows, against float64."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from relevo.engine import _kernels
from relevo.engine.models import linear
from relevo.engine.models.linear import product

SHAPES = [(64, 32), (576, 960), (576, 3), (1536, 577), (100, 50), (7, 5), (32, 1)]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def matrices(dtype, rows, inputs, outputs):
    torch.manual_seed(rows * 1000 + inputs)
    x = torch.randn(rows, inputs).to(dtype)
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    return x, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_equals_float64(dtype, inputs, outputs, threads):
    for rows in (1, 2, 3, 5, 16, 50):
        x, weight, bias = matrices(dtype, rows, inputs, outputs)
        exact = x.double() @ weight.double().T
        scale = inputs**0.5 * (2**-22 if dtype is torch.float32 else 2**-8)
        for b in (None, bias):
            wanted = exact if b is None else exact + b.double()
            got = product(x, weight, b)
            assert got.dtype is dtype
            assert (got.double() - wanted).abs().max() <= scale * wanted.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours(dtype, threads):
    """So that decode steps of a few sequences give what each alone gives."""
    for inputs, outputs in SHAPES:
        x, weight, bias = matrices(dtype, 16, inputs, outputs)
        alone = torch.cat([product(row[None], weight, bias) for row in x])
        for rows in (2, 3, 4, 7, 16):
            assert torch.equal(product(x[:rows], weight, bias), alone[:rows])


def test_rows_that_are_not_contiguous():
    x, weight, _ = matrices(torch.float32, 8, 64, 32)
    assert torch.equal(product(x[::2], weight), product(x[::2].clone(), weight))


def test_many_rows_without_native_bfloat16(monkeypatch):
    monkeypatch.setattr(linear, "_NATIVE", False)
    products = []

    def recorded(x, weight, bias):
        products.append(x.dtype)
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(linear, "linear", recorded)
    x, weight, bias = matrices(torch.bfloat16, 100, 64, 32)
    wanted = (x.double() @ weight.double().T + bias.double()).to(torch.bfloat16)
    assert (product(x, weight, bias) - wanted).abs().max() <= 2**-7 * wanted.abs().max()
    assert products == [torch.float32]


def test_callers_of_any_number_share_the_threads():
    """Loops of one to four threads, from three threads at once, with pauses in which helpers fall
    asleep."""
    x, weight, _ = matrices(torch.float32, 4, 576, 1536)
    wanted = product(x, weight)

    def work(seed):
        for i in range(300):
            out = torch.empty_like(wanted)
            threads = 1 + (seed + i) % 4
            _kernels.linear(
                False, x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), 4, 576, 1536, threads
            )
            assert torch.equal(out, wanted)
            if i % 50 == 0:
                time.sleep(0.002)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(work, seed) for seed in range(3)]:
            done.result(timeout=60)

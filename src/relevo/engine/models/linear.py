"""Linear layers that know how a tensor-parallel rank holds its share, and the product they use."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear

from relevo.engine import _kernels

AllReduce = Callable[[torch.Tensor], torch.Tensor]


def bfloat16_is_native() -> bool:
    """Whether torch's bfloat16 products are fast on this CPU. Where they are not (no AVX-512 or
    AMX), they are a hundred times slower than in float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_NATIVE = bfloat16_is_native()
# Up to so many rows our kernel is the faster one (see native/kernels/linear.h). Beyond, and beside
# chunks of a prompt, a row's last bits may differ.
_FEW_ROWS = {torch.float32: 16, torch.bfloat16: 16 if _NATIVE else 48}


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [rows, in], weight [out, in], bias [out] → [rows, out], summed in float32."""
    if weight.device.type != "cpu" or weight.dtype not in _FEW_ROWS:
        return linear(x, weight, bias)
    if len(x) <= _FEW_ROWS[weight.dtype]:
        return _few_rows(x.contiguous(), weight, bias)
    if weight.dtype is torch.bfloat16 and not _NATIVE:
        wide = None if bias is None else bias.float()
        return linear(x.float(), weight.float(), wide).bfloat16()
    return linear(x, weight, bias)


def _few_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows, inputs = x.shape
    out = x.new_empty(rows, len(weight))
    _kernels.linear(
        weight.dtype is torch.bfloat16, x.data_ptr(), weight.data_ptr(),
        0 if bias is None else bias.data_ptr(), out.data_ptr(), rows, inputs, len(weight),
        torch.get_num_threads(),
    )  # fmt: skip
    return out


class ColumnParallelLinear:
    """The rank holds a slice of the outputs; nothing has to be exchanged.

    weight [out of this rank, in], bias [out of this rank] or None; contiguous.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self.weight, self.bias)


class RowParallelLinear:
    """The rank holds a slice of the inputs; its output is a partial sum until all ranks' are added.

    weight [out, in of this rank], contiguous; `all_reduce` is None where there is one rank.
    """

    def __init__(self, weight: torch.Tensor, all_reduce: AllReduce | None = None) -> None:
        self.weight = weight
        self._all_reduce = all_reduce

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = product(x, self.weight)
        return out if self._all_reduce is None else self._all_reduce(out)

"""Linear layers that know how a tensor-parallel rank holds its share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import linear

AllReduce = Callable[[torch.Tensor], torch.Tensor]


class ColumnParallelLinear:
    """The rank holds a slice of the outputs; nothing has to be exchanged.

    weight [out of this rank, in], bias [out of this rank] or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class RowParallelLinear:
    """The rank holds a slice of the inputs; its output is a partial sum until all ranks' are added.

    weight [out, in of this rank]; `all_reduce` is None where there is one rank.
    """

    def __init__(self, weight: torch.Tensor, all_reduce: AllReduce | None = None) -> None:
        self.weight = weight
        self._all_reduce = all_reduce

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = linear(x, self.weight)
        return out if self._all_reduce is None else self._all_reduce(out)

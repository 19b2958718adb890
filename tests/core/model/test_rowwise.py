"""Functions of single numbers: a row has the same bits at every place of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.blocks.rowwise import rowwise
from outrider.core.model.kernels.activations import ACTIVATIONS


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "gelu": lambda x: ACTIVATIONS["gelu_tanh"](x, torch.ones_like(x)),
    "halves": lambda x: ACTIVATIONS["silu"](*x.chunk(2, -1)),
}


@pytest.mark.parametrize("columns", [22016, 11008, 14, 6, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_place_in_a_pass_changes_nothing(name: str, columns: int) -> None:
    x = torch.randn(8, columns, generator=torch.Generator().manual_seed(0)) * 3
    function = FUNCTIONS[name]

    def apart(x: Tensor) -> Tensor:
        return rowwise(ACTIVATIONS["silu"], *x.chunk(2, -1)) if name == "halves" else rowwise(function, x)

    want = apart(x)
    torch.testing.assert_close(want, function(x), atol=1e-6, rtol=1e-5)
    for shift in range(1, 8):
        assert torch.equal(apart(x.roll(shift, 0)).roll(-shift, 0), want)


def test_wide_passes_and_single_rows_are_left_to_torch() -> None:
    calls: list[int] = []

    def counted(x: Tensor) -> Tensor:
        calls.append(x.shape[0])
        return x.exp()

    for rows, columns in ((1, 40_000), (65, 40_000), (8, 64), (3, 40_000), (3, 5)):
        rowwise(counted, torch.zeros(rows, columns))
    assert calls == [1, 65, 8, *(1, 1, 1), *(1, 1, 1)]

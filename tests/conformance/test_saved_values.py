"""Values that backward needs and `forward` changes in place: refused, with the line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Errors while tracing", fidelity="exact")

X = torch.randn(3, 4)

# Each of them changes its argument in its last line.
CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "whole": lambda y: y.mul_(2),
    "row": lambda y: y.__setitem__(0, 0),
    "column": lambda y: y[:, 0].mul_(2),
    "part of a view": lambda y: y.view(-1)[::2].zero_(),
    "transposed": lambda y: y.t().copy_(torch.ones(4, 3, device=y.device)),
    "flat": lambda y: y.flatten()[:3].fill_(1),
    "mask": lambda y: y.masked_fill_(y > 0, 0),
    "rows by index": lambda y: y.index_fill_(0, torch.tensor([1], device=y.device), 3),
    "activation": lambda y: F.silu(y, inplace=True),
}
KEPT = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "softmax": lambda y: y.softmax(1),
}


class Model(nn.Module):
    def __init__(self, kept: Callable, change: Callable) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept, self.change = kept, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.kept(self.layer(x))
        other = torch.zeros_like(y)
        other += 1  # Of the same shape, but backward does not need it.
        self.change(y)
        return poptorch.identity_loss(y + other, "sum")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kept", KEPT)
def test_saved_value_when_changed_later_then_refused_with_the_line(kept: str, change: str) -> None:
    function = CHANGES[change]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Model(KEPT[kept], function)(X).backward()
    line = f"{__file__}:{function.__code__.co_firstlineno}"
    with pytest.raises(
        poptorch.Error, match=rf"changes in place afterwards, at .*{line}\. "
    ) as said:
        poptorch.trainingModel(Model(KEPT[kept], function), options())(X)
    assert "shape [3, 4]" in said.value.message


def test_saved_value_when_a_copy_is_changed_then_trains_as_pytorch() -> None:
    model = Model(F.relu, lambda y: y.clone().mul_(2))
    plain = Model(F.relu, lambda y: y.clone().mul_(2))
    plain.load_state_dict(model.state_dict())
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    poptorch.trainingModel(model, options(), optimizer)(X)
    plain(X).backward()
    expected = plain.layer.weight - 0.1 * plain.layer.weight.grad
    torch.testing.assert_close(model.layer.weight.detach(), expected.detach())

"""Tensors on the IPU outside a model (semantics.md §12.3): copies, and constants of models."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from support.wrapped_functions import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature('tensor.to("ipu") outside a model', fidelity="exact")

X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


class Scaled(nn.Module):
    """A model with constants that were moved to the IPU before it is traced."""

    def __init__(self, forward=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = torch.tensor([1.0, 2.0, 3.0]).to("ipu")
        self.index = torch.tensor([2, 0]).to(torch.device("ipu"))
        self.function = forward

    def forward(self, x: torch.Tensor):
        return self.function(self, x) if self.function else x * self.scale


def run(forward=None):
    return poptorch.inferenceModel(Scaled(forward), options())(X)


def test_tensor_when_moved_then_is_on_the_ipu_without_visible_values() -> None:
    tensor = torch.ones(3).to("ipu")
    assert tensor.is_ipu and str(tensor.device) == "ipu:0" and torch.ones(3).ipu().is_ipu
    assert repr(tensor) == "tensor(<unavailable>, device='ipu:0', size=(3,))"


@pytest.mark.parametrize(
    "copied",
    [
        lambda tensor: tensor.cpu(),
        lambda tensor: tensor.to("ipu").to("cpu"),
        lambda tensor: tensor.clone().detach().cpu(),
        lambda tensor: torch.zeros(3).copy_(tensor),
        lambda tensor: torch.zeros(3).to("ipu").copy_(tensor).cpu(),
        lambda tensor: copy.deepcopy(tensor).cpu(),
        lambda tensor: pickle.loads(pickle.dumps(tensor)).cpu(),
    ],
)
def test_tensor_when_copied_then_keeps_its_values(copied) -> None:
    values = torch.tensor([1.5, 2.5, 3.5])
    result = copied(values.to("ipu"))
    assert result.device.type == "cpu"
    torch.testing.assert_close(result, values, rtol=0, atol=0)


def test_tensor_when_copied_then_may_change_its_type() -> None:
    tensor = torch.ones(3).to("ipu", torch.half)
    assert tensor.dtype is torch.half
    assert tensor.to("cpu", torch.float32).dtype is torch.float32


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor + 1,
        lambda tensor: tensor[0],
        lambda tensor: tensor.zero_(),
        lambda tensor: torch.zeros(2, device="ipu"),
    ],
)
def test_tensor_when_computed_with_then_error_says_what_is_possible(use) -> None:
    tensor = torch.ones(3).to("ipu")
    with pytest.raises(poptorch.Error, match='can only be copied, to the CPU with tensor.to."cpu"'):
        use(tensor)


def test_tensor_of_an_unsupported_type_when_moved_then_error() -> None:
    with pytest.raises(
        poptorch.Error, match=r"Unsupported scalar type `BFloat16'.*Please cast to `Half'"
    ):
        torch.ones(3, dtype=torch.bfloat16).to("ipu")


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (None, X * torch.tensor([1.0, 2.0, 3.0])),
        (lambda self, x: x[:, self.index], X[:, [2, 0]]),
        (lambda self, x: x * self.scale[1] * int(self.index[0]), X * 4),
        (lambda self, x: poptorch.for_loop(2, lambda y: y + self.scale, [x])[0], X + X[0] * 2),
        (lambda self, x: x * self.scale.clone().add_(1), X * torch.tensor([2.0, 3.0, 4.0])),
    ],
    ids=["operand", "index", "read", "in-a-loop", "copy-changed"],
)
def test_tensor_when_used_in_forward_then_is_a_constant(forward, expected) -> None:
    torch.testing.assert_close(run(forward), expected)


def test_tensor_when_returned_then_its_values_come_back() -> None:
    result, index = run(lambda self, x: (x + 1, self.index))
    torch.testing.assert_close(result, X + 1)
    assert index.dtype is torch.int32 and index.tolist() == [2, 0]


@pytest.mark.parametrize(
    "change",
    [lambda self, x: self.scale.add_(1), lambda self, x: torch.add(x, x, out=self.scale)],
    ids=["in place", "out"],
)
def test_tensor_when_changed_in_forward_then_error(change) -> None:
    with pytest.raises(poptorch.Error, match=re.escape("it is a constant. Change a clone()")):
        run(lambda self, x: x * change(self, x))


def test_tensor_when_training_then_gradients_pass_by_it() -> None:
    model = Scaled(lambda self, x: poptorch.identity_loss(self.weight * self.scale * x, "sum"))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    poptorch.trainingModel(model, options(), optimizer)(X)
    expected = 1 - 0.5 * X.sum(0) * torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(model.weight.detach(), expected)


def test_model_with_such_a_tensor_when_saved_then_loads(tmp_path) -> None:
    executor = poptorch.inferenceModel(Scaled(), options())
    executor(X)
    executor.save(tmp_path / "model")
    torch.testing.assert_close(poptorch.load(tmp_path / "model")(X), executor(X), rtol=0, atol=0)


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_model_when_moved_by_the_user_then_error(wrap) -> None:
    with pytest.raises(poptorch.Error, match="weight is on the IPU already"):
        wrap(nn.Linear(3, 2).to("ipu"), options())(X)

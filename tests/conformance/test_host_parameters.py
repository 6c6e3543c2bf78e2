"""Parameters that forward reads outside of their modules, and therefore on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch


class Holder:
    """Stores a tensor where PyTorch's modules do not look for parameters, as some libraries do."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Scaled(nn.Module):
    """A linear layer whose result is scaled by a parameter that a holder stores."""

    def __init__(self, read, shape: tuple[int, ...] = (3,)) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.full(shape, 2.0))
        self.held = Holder(self.scale)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.linear(x) * self.read(self), "sum")


READS = {
    "at once": lambda model: model.held.value,
    "computed on the host": lambda model: model.held.value.exp()[:1],
    "moved": lambda model: model.held.value.to("ipu"),
    "computed": lambda model: (model.held.value.exp() + 1).to("ipu"),
    "detached": lambda model: model.held.value.detach().to("ipu"),
    "data": lambda model: model.held.value.data[1:2].to("ipu"),
}
X = torch.arange(6.0).view(2, 3)


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def training_of(model: nn.Module) -> poptorch.PoplarExecutor:
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options(), optimizer)


# PyTorch hides this warning unless warnings are errors, as in these tests.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_trained_parameter_when_read_on_the_host_then_refused_by_name(read) -> None:
    model = Scaled(read)
    with pytest.raises(poptorch.Error, match="the host's tensor of parameter 'scale'") as error:
        training_of(model)(X)
    assert "test_host_parameters.py" in str(error.value)
    assert "as self.weight" in str(error.value)
    assert model.scale.device.type == "cpu"


def test_scalar_parameter_when_it_meets_tensors_of_the_ipu_then_refused() -> None:
    with pytest.raises(poptorch.Error, match="the host's tensor of parameter 'scale'"):
        training_of(Scaled(lambda model: model.held.value, shape=()))(X)


def test_parameter_when_moved_before_the_trace_then_refused() -> None:
    model = Scaled(lambda model: model.moved)
    model.moved = model.scale.to("ipu")
    with pytest.raises(poptorch.Error, match="the host's tensor of parameter 'scale'"):
        training_of(model)(X)


@pytest.mark.parametrize("change", ["frozen", "cloned", "inference"])
def test_constant_that_is_not_trained_when_read_on_the_host_then_runs(change: str) -> None:
    model = Scaled(READS["moved"])
    if change == "frozen":
        model.scale.requires_grad_(False)
    elif change == "cloned":
        model.held.value = model.scale.detach().clone()
    wrap = poptorch.inferenceModel if change == "inference" else poptorch.trainingModel
    expected = (nn.functional.linear(X, model.linear.weight, model.linear.bias) * 2).sum()
    result = wrap(model, options())(X)
    torch.testing.assert_close(result, expected.detach())

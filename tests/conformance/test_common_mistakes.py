"""Common mistakes of beginners end in a message that names the way out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.forked_programs import run_forked
from support.small_models import Function, options
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import poptorch_emu as poptorch

X = torch.randn(2, 3)
LABELS = torch.tensor([0, 2])

LOSSES = {
    "cross_entropy": F.cross_entropy,
    "nll_loss": lambda x, y: F.nll_loss(x.log_softmax(1), y),
    "multi_margin_loss": F.multi_margin_loss,
    "gather": lambda x, y: x.gather(1, y[:, None]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_labels_of_a_wrong_type_then_message_is_pytorchs_and_says_what_to_cast(name, dtype) -> None:
    function, labels = LOSSES[name], LABELS.to(dtype)
    with pytest.raises(RuntimeError) as plain:
        function(X, labels)
    with pytest.raises(RuntimeError) as caught:
        poptorch.inferenceModel(Function(function), options())(X, labels)
    assert str(caught.value) == f"{plain.value}. Cast the labels or indices first, as y.long()."


class Classifier(nn.Module):
    def __init__(self, in_float: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.in_float = in_float

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x)
        return F.cross_entropy(scores.float() if self.in_float else scores, labels)


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_loader_in_place_of_a_batch_then_message_names_poptorchs_loader(wrap) -> None:
    dataset = TensorDataset(X, LABELS)
    for given in (DataLoader(dataset), poptorch.DataLoader(options(), dataset), dataset):
        with pytest.raises(poptorch.Error, match=r"poptorch.DataLoader\(options, dataset"):
            wrap(Classifier(), options())(given)
        with pytest.raises(poptorch.Error, match=r"for x in loader: model\(x\)"):
            wrap(Classifier(), options())(X, labels=given)


def test_value_that_is_printed_in_forward_then_message_says_to_return_it() -> None:
    with pytest.raises(poptorch.Error, match="To log or print the value, return it from forward"):
        poptorch.inferenceModel(Function(lambda x: (print(x.sum().item()), x)[1]), options())(X)


def test_tensor_that_forward_keeps_then_warning_has_the_line(caplog) -> None:
    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x * 2
            self.parts = (x + 1, 3)
            return x

    poptorch.inferenceModel(Keeps(), options())(X)
    first = Keeps.forward.__code__.co_firstlineno + 1
    assert f"last (computed at {__file__}:{first})" in caplog.text
    assert f"parts (computed at {__file__}:{first + 1})" in caplog.text


LARGEST_HALF = 65504.0


@pytest.mark.parametrize("optimizer", [poptorch.optim.SGD, poptorch.optim.AdamW])
def test_loss_scaling_above_the_losss_type_then_refused(optimizer) -> None:
    for dtype, largest in ((torch.float16, LARGEST_HALF), (torch.float32, 3.4e38)):
        for scaling in (largest, 1.01 * largest):
            model = Classifier().to(dtype)
            given = optimizer(model.parameters(), lr=0.0, loss_scaling=scaling)
            training = poptorch.trainingModel(model, options(), given)
            if scaling == largest:
                training.compile(X.to(dtype), LABELS)
                continue
            line = Classifier.forward.__code__.co_firstlineno + 2
            with pytest.raises(
                poptorch.Error, match=f"largest number of {dtype}.*{__file__}:{line}"
            ):
                training(X.to(dtype), LABELS)


def test_loss_scaling_above_the_gradients_type_then_warns(caplog) -> None:
    for scaling in (LARGEST_HALF, 2.0 * LARGEST_HALF):
        assert "multiplies gradients" not in caplog.text
        model = Classifier(in_float=True).half()
        given = poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=scaling)
        poptorch.trainingModel(model, options(), given).compile(X.half(), LABELS)
    assert "gradients of 'layer.weight' above 0.5 become infinite" in caplog.text


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (2.0 * LARGEST_HALF, "largest number of torch.float16, the type of the loss at"),
        (2**40, "largest number of torch.float16, the type of the loss at"),
        (0.0, "loss_scaling must be a finite number above 0, not 0"),
        (-1.0, "loss_scaling must be a finite number above 0, not -1"),
        (math.inf, "loss_scaling must be a finite number above 0, not inf"),
        (10**400, "loss_scaling must be a finite number above 0, not inf"),
        (math.nan, "loss_scaling must be a finite number above 0, not nan"),
        (True, "Expected a number for loss_scaling but got True"),
        ("8", "Expected a number for loss_scaling but got 8"),
    ],
    ids=str,
)
def test_loss_scaling_of_a_later_optimizer_then_refused_and_the_old_one_stays(
    half_training, scaling, message
) -> None:
    training, before = half_training
    with pytest.raises((poptorch.Error, AssertionError), match=message):
        training.setOptimizer(
            poptorch.optim.SGD(training.model.parameters(), lr=0.0, loss_scaling=scaling)
        )
    assert torch.equal(training(X.half(), LABELS), before)


@pytest.fixture(scope="module")
def half_training() -> Any:
    """Returns a model whose loss is in float16, with its loss at a loss scaling of 8."""
    model = Classifier().half()
    given = poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=8.0)
    given.variable_attrs.markAsVariable("loss_scaling")
    training = poptorch.trainingModel(model, options(), given)
    return training, training(X.half(), LABELS)


def test_argument_that_only_poptorchs_optimizer_has_then_runner_names_that_class(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nimport poptorch\nweights = [torch.nn.Parameter(torch.ones(1))]\n"
        "torch.optim.AdamW(weights, lr=0.1, loss_scaling=128.0)\n"
    )
    done = run_forked(["-m", "poptorch_emu", str(program)])
    place, change = done.stderr.splitlines()[-2:]
    assert place.startswith(f"In your program: {program}:4")
    assert change == (
        "What to change: Write poptorch.optim.AdamW: PyTorch's class has no loss_scaling."
    )

"""Inputs that `forward` changes in place (spec, semantics 15)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.small_models import Function, options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import OutputMode

pytestmark = pytest.mark.feature("In-place updates of inputs", fidelity="exact")


class Doubles(nn.Module):
    """Doubles `x` in place and returns it plus one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x *= 2
        return x + 1


class Nested(nn.Module):
    """Changes tensors within a tuple; returns nothing."""

    def forward(self, pair, y: torch.Tensor) -> None:
        pair[1].add_(y)
        y[0] = 7


def _model(module: nn.Module, mode: OutputMode, iterations: int = 1, period: int = 1):
    options = poptorch.Options().deviceIterations(iterations).outputMode(mode, period)
    return poptorch.inferenceModel(module, options.showCompilationProgressBar(False))


@pytest.mark.parametrize("mode", [OutputMode.All, OutputMode.Final, OutputMode.Sum])
def test_input_when_one_micro_batch_then_every_mode_writes_it_back(mode: OutputMode) -> None:
    x = torch.tensor([[1.0], [2.0]])
    model = _model(Doubles(), mode)
    for expected in ([[2.0], [4.0]], [[4.0], [8.0]]):
        result = model(x)
        assert x.tolist() == expected
        assert torch.equal(result, x + 1)


@pytest.mark.parametrize("mode", OutputMode)
def test_input_when_several_micro_batches_then_every_mode_writes_each_to_its_rows(
    mode: OutputMode,
) -> None:
    x = torch.arange(6.0)[:, None]
    _model(Doubles(), mode, iterations=3, period=3)(x)
    assert x.flatten().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_target_when_scaled_in_place_in_training_then_all_its_rows_are(accumulation: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, y):
            y.mul_(2.0)
            return nn.functional.mse_loss(self.linear(x), y)

    model = Model()
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
    options.Training.gradientAccumulation(accumulation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    y = torch.randn(2 * accumulation * 2, 4)
    expected = y * 2
    training(torch.ones_like(y), y)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("kind", ["Consecutive", "Orthogonal"])
def test_input_when_replicas_share_rows_then_they_are_written_once(kind: str) -> None:
    options = poptorch.Options().deviceIterations(2).replicationFactor(4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType[kind])
    model = poptorch.inferenceModel(Doubles(), options.showCompilationProgressBar(False))
    x = torch.arange(16.0).reshape(8, 2)
    expected = x * 2
    model(x)
    assert torch.equal(x, expected)


def test_input_when_a_number_that_replicas_share_then_written() -> None:
    options = poptorch.Options().replicationFactor(2)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    x = torch.tensor(3.0)
    poptorch.inferenceModel(Doubles(), options.showCompilationProgressBar(False))(x)
    assert x.item() == 6.0


RESHAPED = {
    "squeeze_": (lambda x: x.squeeze_(-1).mul_(3), (8, 2, 1)),
    "unsqueeze_": (lambda x: x.unsqueeze_(0).mul_(3), (8, 2)),
    "t_": (lambda x: x.t_().mul_(3) @ torch.ones(x.size(1), 1, device=x.device), (8, 2)),
    "transpose_": (lambda x: x.transpose_(0, 1)[0].mul_(3), (8, 2, 2)),
    "squeeze_ alone": (lambda x: x.squeeze_(-1).add(1), (8, 2, 1)),
}


@pytest.mark.parametrize(("function", "shape"), RESHAPED.values(), ids=RESHAPED)
def test_input_when_reshaped_in_place_then_has_the_values_of_plain_pytorch_in_its_own_shape(
    function, shape
) -> None:
    class Model(nn.Module):
        def forward(self, x):
            return function(x).sum(-1)

    x = torch.randn(shape)
    plain = x.clone()
    # Chunks share memory with `plain`.
    expected = [function(rows).sum(-1) for rows in plain.chunk(2)]
    result = _model(Model(), OutputMode.All, iterations=2)(x)
    torch.testing.assert_close(result, torch.cat(expected))
    assert torch.equal(x, plain)


def test_input_when_changed_by_both_stages_of_a_pipeline_then_each_row_has_the_last_value() -> None:
    class Model(nn.Module):
        def forward(self, x):
            with poptorch.Block("first", ipu_id=0):
                x.add_(1)
                y = x * 2
            with poptorch.Block("second", ipu_id=1):
                x.mul_(y)
                return x + y

    x = torch.randn(8, 3)
    plain = x.clone()
    expected = Model()(plain)
    torch.testing.assert_close(_model(Model(), OutputMode.All, iterations=4)(x), expected)
    torch.testing.assert_close(x, plain)


def test_inputs_when_nested_then_all_that_changed_are_written_back() -> None:
    first, second, y = torch.ones(2, 2), torch.ones(2, 2), torch.full((2, 2), 3.0)
    assert _model(Nested(), OutputMode.All)((first, second), y) is None
    assert torch.equal(first, torch.ones(2, 2))
    assert torch.equal(second, torch.full((2, 2), 4.0))
    assert y.tolist() == [[7.0, 7.0], [3.0, 3.0]]


def test_input_when_64_bit_then_converted_on_the_way_back() -> None:
    x = torch.tensor([1, 2], dtype=torch.int64)
    _model(Doubles(), OutputMode.All)(x)
    assert x.dtype is torch.int64 and x.tolist() == [2, 4]


def test_input_when_replicated_then_each_replica_writes_its_rows() -> None:
    options = poptorch.Options().replicationFactor(2).outputMode(OutputMode.All)
    model = poptorch.inferenceModel(Doubles(), options.showCompilationProgressBar(False))
    x = torch.arange(4.0)[:, None]
    model(x)
    assert x.flatten().tolist() == [0.0, 2.0, 4.0, 6.0]


def _by_operator(value: torch.Tensor) -> torch.Tensor:
    value *= 2.0
    return value


def _by_function(value: torch.Tensor) -> torch.Tensor:
    return F.relu(value, inplace=True)


@pytest.mark.parametrize("change", [_by_operator, _by_function])
def test_result_that_backward_needs_when_changed_in_place_then_error_names_the_line(change) -> None:
    model = Function(
        lambda x, w: poptorch.identity_loss(change(torch.tanh(x * w)), "sum"), torch.ones(2)
    )
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(poptorch.Error, match=r"shape \[3, 2\] that Tanh computed") as error:
        training(torch.ones(3, 2))
    line = change.__code__.co_firstlineno + 1
    assert f"test_inplace_inputs.py:{line}" in str(error.value)

"""Inputs that `forward` changes in place (spec, semantics 15)."""

from __future__ import annotations

import pytest
import torch
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


def test_input_when_several_micro_batches_and_all_then_each_is_written_to_its_rows() -> None:
    x = torch.arange(6.0)[:, None]
    _model(Doubles(), OutputMode.All, iterations=3)(x)
    assert x.flatten().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize(
    ("mode", "period", "value"),
    [(OutputMode.Final, 1, 6.0), (OutputMode.EveryN, 3, 6.0), (OutputMode.Sum, 1, 12.0)],
)
def test_input_when_several_micro_batches_of_one_row_then_the_modes_value_is_broadcast(
    mode: OutputMode, period: int, value: float
) -> None:
    x = torch.tensor([[1.0], [2.0], [3.0]])
    _model(Doubles(), mode, iterations=3, period=period)(x)
    assert x.flatten().tolist() == [value] * 3


@pytest.mark.parametrize("mode", [OutputMode.Final, OutputMode.Sum])
def test_input_when_the_modes_value_does_not_fit_then_shape_error(mode: OutputMode) -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        _model(Doubles(), mode, iterations=3)(torch.ones(6, 1))


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

"""Bad input: the documented error, the way out, and nothing half-changed."""

from __future__ import annotations

import copy

import pytest
import torch
from support.models import FAMILIES
from torch import nn

import poptorch_emu as poptorch


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def test_batch_that_does_not_divide_when_called_then_names_each_factor() -> None:
    opts = options().deviceIterations(2)
    opts.Training.gradientAccumulation(3)
    training = poptorch.trainingModel(FAMILIES["mlp"].make(1), opts)
    with pytest.raises(AssertionError, match="Invalid batch dimension: In the input") as error:
        training(*FAMILIES["mlp"].batch(13))
    assert "must be a multiple of" in str(error.value)
    assert "Options.deviceIterations(2)" in str(error.value)
    assert "Options.Training.gradientAccumulation(3)" in str(error.value)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        (lambda x, y: (torch.randn(8, 8), y), "Shape mismatch for x"),
        (lambda x, y: (x.half(), y), "Data type mismatch for x"),
        (lambda x, y: ([x], y), "Type mismatch for x"),
    ],
    ids=["shape", "dtype", "type"],
)
def test_other_input_when_compiled_then_refused_and_weights_unchanged(change, phrase) -> None:
    model = FAMILIES["mlp"].make(1)
    training = poptorch.trainingModel(model, options())
    batch = FAMILIES["mlp"].batch(4)
    training(*batch)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(poptorch.Error, match=phrase) as error:
        training(*change(*batch))
    assert "inputs passed at runtime don't match" in str(error.value)
    assert "call destroy()" in str(error.value)
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value)
    training(*batch)


def test_unknown_block_when_traced_then_lists_the_expected_ones() -> None:
    opts = options()
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("elsewhere")))
    training = poptorch.trainingModel(FAMILIES["mlp"].make(1), opts)
    with pytest.raises(AssertionError, match="Unknown Block 'part0' list of expected Blocks"):
        training(*FAMILIES["mlp"].batch(4))


@pytest.mark.parametrize("is_training", [True, False])
def test_block_that_the_model_lacks_when_traced_then_training_warns(is_training, caplog) -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block("layer"):
                return poptorch.identity_loss(super().forward(x), "sum")

    opts = options().setExecutionStrategy(poptorch.ShardedExecution("layer", "typo"))
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    model = Model(2, 2)
    x = torch.randn(2, 2)
    expected = model(x).detach()
    torch.testing.assert_close(wrap(model, opts)(x), expected)
    assert ("blocks that the model did not begin: ['typo']" in caplog.text) == is_training


class NoLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class TwoLosses(NoLoss):
    def forward(self, x: torch.Tensor):
        y = self.linear(x)
        return nn.functional.mse_loss(y, x), nn.functional.l1_loss(y, x)


class Branching(NoLoss):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else x


class DataShape(NoLoss):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).nonzero()


class HostTensor(NoLoss):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(3, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class LeavesBlock(NoLoss):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("one"):
            x = self.linear(x)
        return x + 1


class Reassigned(NoLoss):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = (self.count + 1).float()  # Changes the dtype of the buffer.
        return self.linear(x) + self.count


@pytest.mark.parametrize(
    ("model", "phrase"),
    [
        (NoLoss, "Couldn't find a loss in graph!"),
        (TwoLosses, "Multiple independent losses found in graph"),
    ],
)
def test_loss_when_not_to_be_found_then_error(model: type[nn.Module], phrase: str) -> None:
    wrapped = model()
    training = poptorch.trainingModel(wrapped, options())
    with pytest.raises(poptorch.Error, match=phrase):
        training(torch.randn(2, 3))
    assert wrapped.linear.weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("model", "phrase"),
    [
        (Branching, "aten::item is only supported in eager mode"),
        (DataShape, "shape depends on data"),
        (HostTensor, "Expected an IPU tensor but got tensor\\(device=cpu"),
        (Reassigned, "Buffer count is reassigned within the model"),
    ],
)
def test_forward_that_cannot_be_captured_then_error_and_model_restored(
    model: type[nn.Module], phrase: str
) -> None:
    module = model()
    inference = poptorch.inferenceModel(module, options())
    with pytest.raises(poptorch.Error, match=phrase) as error:
        inference(torch.randn(2, 3))
    if model is not Reassigned:
        assert "test_bad_input.py" in str(error.value)
    assert all(value.device.type == "cpu" for value in module.state_dict().values())
    assert not inference.isCompiled()


def test_operation_after_a_block_then_error() -> None:
    opts = options().setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage("one")))
    with pytest.raises(poptorch.Error, match="No active Block, all the ops must belong to a Block"):
        poptorch.inferenceModel(LeavesBlock(), opts)(torch.randn(2, 3))


def test_index_out_of_range_when_running_then_error_names_the_place() -> None:
    model = FAMILIES["embedding"].make(1)
    training = poptorch.trainingModel(model, options())
    good = FAMILIES["embedding"].batch(2)
    training(*good)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(poptorch.Error, match="Exception while executing node") as error:
        training(torch.full((2, 6), 99), good[1])
    text = str(error.value)
    assert "part0" in text and "micro-batch 0" in text and "[20, 12]" in text
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value)
    training(*good)

"""Models that cannot be exported: the error names the user's line and a way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

THIS_FILE = "test_export_refusals.py"


class Split(nn.Module):
    """Two layers on two IPUs; `middle` runs between them."""

    def __init__(self, middle: Any = lambda model, value: value) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(1))
        self.middle = middle

    def forward(self, x: torch.Tensor) -> Any:
        value = self.middle(self, self.first(x))
        poptorch.Block.start("second", ipu_id=1)
        return poptorch.identity_loss(self.second(value) ** 2, "mean")


def make_options(num_replicas: int = 1) -> poptorch.Options:
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options.replicationFactor(num_replicas)
    options.showCompilationProgressBar(False)
    return options


def compiled(
    model: nn.Module,
    options: poptorch.Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    rows: int = 8,
) -> Any:
    options = options or make_options()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(torch.randn(rows, 4))
    return executor


def loop(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    return poptorch.for_loop(2, lambda x: torch.sin(x), [value])[0]


def branch(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    chosen = poptorch.cond(value.sum() > 0, torch.sin, [value], torch.cos, [value])
    return chosen[0] if isinstance(chosen, (list, tuple)) else chosen


def host_call(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    on_host = poptorch.CPU(lambda x: x + 1, "export_plus_one")
    return value + on_host(value.detach())


def printed(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    return poptorch.ipu_print_tensor(value, "middle")


def counted(model: Any, value: torch.Tensor) -> torch.Tensor:
    model.seen += 1
    return value + model.seen


def normalised(model: Any, value: torch.Tensor) -> torch.Tensor:
    return model.norm(value)


class Half(torch.autograd.Function):
    """A function whose gradient does not belong to its forward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.5


def own_gradient(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    return Half.apply(value)


def detached(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    return value.detach() + model.first.bias


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (loop, "has a loop"),
        (branch, "has a branch"),
        (host_call, "has a call of the host"),
        (printed, "print_tensor"),
        (counted, "changes 'seen'"),
        (normalised, "freeze_statistics=True"),
        (own_gradient, "The gradient of 'first.weight'"),
        (detached, "The gradient of 'first.weight'"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_export_when_forward_does_what_pytorch_has_not_then_names_the_line(
    middle: Any, message: str
) -> None:
    executor = compiled(Split(middle))
    with pytest.raises(poptorch.Error, match=message) as failure:
        emulator.export_pipeline(executor)
    assert THIS_FILE in str(failure.value)


def test_export_when_loss_is_in_the_first_stage_then_names_the_line() -> None:
    class Early(Split):
        def forward(self, x: torch.Tensor) -> Any:
            loss = F.mse_loss(self.first(x), x)
            poptorch.Block.start("second", ipu_id=1)
            return self.second(x), loss

    executor = compiled(Early())
    with pytest.raises(poptorch.Error, match=f"The loss at .*{THIS_FILE}.*not in the last stage"):
        emulator.export_pipeline(executor)


def test_export_when_loss_is_a_vector_then_says_to_reduce_it() -> None:
    class Vector(Split):
        def forward(self, x: torch.Tensor) -> Any:
            poptorch.Block.start("second", ipu_id=1)
            return poptorch.identity_loss(self.second(x).sum(1), "none")

    executor = compiled(Vector())
    with pytest.raises(poptorch.Error, match=r"has the shape \[2\].*Reduce it"):
        emulator.export_pipeline(executor)


def shared_inputs() -> poptorch.Options:
    options = make_options(num_replicas=2)
    return options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)


def sharded() -> poptorch.Options:
    options = make_options()
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setOptimizerLocation(location.minElementsForReplicatedTensorSharding(2))
    return options


def rounding() -> poptorch.Options:
    options = make_options()
    options.Precision.enableStochasticRounding(True)
    return options


def iterating() -> poptorch.Options:
    return make_options().deviceIterations(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (shared_inputs, "Leave out replicaGrouping and inputReplicaGrouping"),
        (sharded, "fully_shard"),
        (rounding, "enableStochasticRounding"),
        (iterating, r"deviceIterations\(1\)"),
    ],
)
def test_export_when_options_have_no_form_in_pytorch_then_names_the_way_out(
    options: Any, message: str
) -> None:
    executor = compiled(Split(), options(), rows=16)
    with pytest.raises(poptorch.Error, match=message):
        emulator.export_pipeline(executor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_scaling": 8.0}, "loss_scaling=8.0.*GradScaler"),
        ({"accum_type": torch.float16}, "adds up gradients in torch.float16.*Leave accum_type"),
    ],
)
def test_export_when_optimizer_needs_more_than_pytorchs_do_then_says_what(
    arguments: dict[str, Any], message: str
) -> None:
    model = Split()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1, **arguments)
    executor = compiled(model, optimizer=optimizer)
    with pytest.raises(poptorch.Error, match=message):
        emulator.export_pipeline(executor)


def test_export_when_replicas_have_weights_of_their_own_then_is_refused() -> None:
    class Grouped(Split):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x * self.scale)

    model = Grouped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, make_options(num_replicas=2), optimizer)
    kind = poptorch.VariableRetrievalMode.OnePerGroup
    executor.scale.replicaGrouping(poptorch.CommGroupType.NoGrouping, 1, kind)
    executor.compile(torch.randn(16, 4))
    with pytest.raises(poptorch.Error, match="Groups of replicas that have weights or inputs"):
        emulator.export_pipeline(executor)


def test_optimizer_when_module_has_other_names_then_says_so() -> None:
    pipeline = emulator.export_pipeline(compiled(Split()))
    with pytest.raises(
        ValueError, match="no group that contains parameter '0.first.weight'.*module.compile"
    ):
        pipeline.optimizer(nn.Sequential(pipeline.stage_module(0)))


def test_export_when_not_compiled_then_says_so() -> None:
    model = Split()
    executor = poptorch.trainingModel(
        model, make_options(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        emulator.export_pipeline(executor)


@pytest.mark.parametrize("stage", [-1, 2])
def test_stage_module_when_out_of_range_then_names_the_range(stage: int) -> None:
    pipeline = emulator.export_pipeline(compiled(Split()))
    assert pipeline.num_stages == 2
    with pytest.raises(IndexError, match=f"no stage {stage}: .* stages 0 to 1"):
        pipeline.stage_module(stage)


def test_optimizer_when_model_does_not_train_then_says_so() -> None:
    model = Split()
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(2))
    executor.compile(torch.randn(4, 4))
    pipeline = emulator.export_pipeline(executor)
    with pytest.raises(poptorch.Error, match="An inference model has no optimizer"):
        pipeline.optimizer(pipeline.stage_module(0))


def test_export_when_statistics_are_frozen_then_batch_norm_is_exported() -> None:
    model = Split(normalised)
    executor = compiled(model)
    pipeline = emulator.export_pipeline(executor, freeze_statistics=True)
    module, rows = pipeline.stage_module(0), torch.randn(2, 4)
    before = module.norm.running_mean.clone()
    (value,) = module(input_0=rows)
    with torch.no_grad():
        expected = model.eval().norm(model.first(rows))
    torch.testing.assert_close(value, expected)
    assert torch.equal(module.norm.running_mean, before)


def warnings_of(executor: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    emulator.export_pipeline(executor)
    return [record.getMessage() for record in caplog.records]


def test_export_when_forward_is_random_then_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    executor = compiled(Split(lambda model, value: F.dropout(F.dropout(value, 0.5), 0.1)))
    (message,) = warnings_of(executor, caplog)
    assert "(2 in all) draws from PyTorch's generator" in message
    assert THIS_FILE in message


def test_export_when_activations_are_recomputed_then_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = make_options()
    options._Popart.set("autoRecomputation", 3)
    (message,) = warnings_of(compiled(Split(), options), caplog)
    assert "torch.utils.checkpoint" in message

"""Moving averages of weights on the device, by `com.acme:ExpMovAvg`: spec/addons.md 2."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("named operators of custom_op", fidelity="exact")


def averaged(weight: torch.Tensor, average: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return poptorch.custom_op([weight, average, factor], "ExpMovAvg", "com.acme", 1, [average])[
            0
        ]


class Model(torch.nn.Module):
    """A student and a teacher, whose weights are averages of the student's, on one IPU or two."""

    def __init__(self, num_stages: int = 1, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.student = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2)).to(dtype)
        self.teacher = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2)).to(dtype)
        self.teacher.requires_grad_(False)
        self.num_stages = num_stages

    def run(self, x: torch.Tensor, factor: torch.Tensor | None) -> Any:
        y, expected = x, x
        for number, (own, other) in enumerate(zip(self.student, self.teacher, strict=True)):
            if factor is not None and self.num_stages == 2:
                poptorch.Block.start(f"layer {number}", ipu_id=number)
            y, expected = torch.tanh(own(y)), torch.tanh(other(expected))
            if factor is not None:
                for weight, average in zip(own.parameters(), other.parameters(), strict=True):
                    averaged(weight, average, factor)
        return y, (y - expected.detach()).square().mean()

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> Any:
        y, loss = self.run(x, factor)
        return y, poptorch.identity_loss(loss, reduction="none")


def plain_step(model: Model, x: torch.Tensor, factor: float, num_parts: int) -> None:
    """Runs one update, and then updates the averages with the earlier weights."""
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.5)
    optimizer.zero_grad()
    before = [parameter.detach().clone() for parameter in model.student.parameters()]
    for rows in x.chunk(num_parts):
        (model.run(rows, None)[1] / num_parts).backward()
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(model.teacher.parameters(), before, strict=True):
            average.copy_(factor * average.float() + (1 - factor) * weight.float())


def options(accumulation: int = 1, replicas: int = 1) -> poptorch.Options:
    result = poptorch.Options().showCompilationProgressBar(False)
    result.Training.gradientAccumulation(accumulation)
    return result.replicationFactor(replicas)


def training(model: torch.nn.Module, opts: poptorch.Options) -> poptorch.PoplarExecutor:
    optimizer = poptorch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.5, use_combined_accum=False
    )
    return poptorch.trainingModel(model, opts, optimizer)


@pytest.mark.parametrize(
    ("num_stages", "accumulation", "replicas"), [(1, 1, 1), (1, 4, 1), (2, 6, 1), (1, 3, 2)]
)
def test_averages_then_change_once_an_update(num_stages, accumulation, replicas) -> None:
    model, reference = Model(num_stages), Model()
    trained = training(model, options(accumulation, replicas))
    count = accumulation * replicas
    for step in range(3):
        x = torch.randn(2 * count, 4)
        factor = 0.9 - 0.2 * step
        trained(x, torch.full((count,), factor))
        plain_step(reference, x, factor, count)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).data, value.data, msg=name)
    assert model.teacher[0].weight.grad is None
    assert all(t > 0 for t in trained.getLatency())
    trained.destroy()


def test_average_with_a_sharded_weight_then_is_the_same() -> None:
    opts = options(3, 2)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    location.minElementsForReplicatedTensorSharding(1)
    opts.TensorLocations.setWeightLocation(location)
    model, reference = Model(), Model()
    trained = training(model, opts)
    x = torch.randn(12, 4)
    trained(x, torch.full((6,), 0.75))
    plain_step(reference, x, 0.75, 6)
    for name, value in reference.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).data, value.data, msg=name)


class Average(torch.nn.Module):
    """An average that `make` updates; the loss contains the result of `make`, if any."""

    def __init__(self, make: Any, **settings: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.average = torch.nn.Parameter(torch.tensor([5.0, 6.0]), **settings)
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        result = self.make(self, x)
        loss = (self.weight * x).sum() + (0 if result is None else result.sum())
        return poptorch.identity_loss(loss, reduction="none")


def test_average_that_nobody_reads_then_changes() -> None:
    def make(self: Average, x: torch.Tensor) -> None:
        averaged(self.weight, self.average, torch.full((1,), 0.75, device=x.device))

    model = Average(make, requires_grad=False)
    trained = training(model, options())
    for expected in ([4.0, 5.0], [3.0 + 0.125, 3.75 + 0.375]):
        trained(torch.ones(1, 2))
        torch.testing.assert_close(model.average.data, torch.tensor(expected))
    with pytest.raises(poptorch.Error, match="'average' .ExpMovAvg. changes with each update"):
        poptorch.emulator.export_pipeline(trained)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, x: averaged(m.weight * 2, m.average, x[0, :1]), "needs a parameter or a buffer"),
        (lambda m, x: averaged(m.weight, m.average, x[0, :1] * 2), "factor that forward computes"),
        (
            lambda m, x: averaged(m.weight, m.average, torch.full((1,), 0.5, device=x.device)),
            "'average', which is trained or changed elsewhere|is read by the model",
        ),
        (lambda m, x: averaged(m.weight, m.average, x), "expected two equal ones"),
    ],
)
def test_average_when_it_cannot_be_then_error_says_why(make, message) -> None:
    model = Average(make)
    with pytest.raises(poptorch.Error, match=message):
        training(model, options())(torch.ones(1, 2))


def test_average_in_inference_then_is_refused() -> None:
    model = poptorch.inferenceModel(Model(), options())
    with pytest.raises(poptorch.Error, match="ExpMovAvg is in inference"):
        model(torch.ones(2, 4), torch.ones(1))

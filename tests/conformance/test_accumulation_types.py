"""Means of gradients, and the types of accumulators and of SGD's velocity (semantics §4, §6)."""

from __future__ import annotations

import pytest
import torch
from support import update_reference as reference
from support.small_models import Function, options, trained

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Accumulation types", fidelity="exact")


@pytest.mark.parametrize("kind", ["Running", "Post"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_accumulation_when_typed_then_contributions_are_rounded_to_it(
    dtype: torch.dtype, kind: str
) -> None:
    """The documented rules of §4, step by step; float16 always takes the running mean."""
    opts = options(accumulation=5)
    strategy = getattr(poptorch.MeanReductionStrategy, kind)
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
    x = torch.tensor([0.1, 0.7, 3.3, -2.2, 1.9])
    model = Function(lambda x, w: poptorch.identity_loss(w * x, "sum"), torch.zeros(1))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, accum_type=dtype)
    training = poptorch.trainingModel(model, opts, optimizer)
    training(x)
    training.destroy()
    total = torch.zeros(1, dtype=dtype)
    for n, g in enumerate(x):
        g = g.to(dtype).float()
        if kind == "Running" or dtype is torch.float16:
            total = torch.lerp(total.float(), g, 1 / (n + 1)).to(dtype)
        else:
            total = (total.float() + g).to(dtype)
    is_sum = kind == "Post" and dtype is torch.float32
    expected = -total.float() / (5 if is_sum else 1)
    torch.testing.assert_close(model.weights[0].detach(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_running_mean_when_replicated_then_each_replica_has_its_own(
    dtype: torch.dtype, replicas: int
) -> None:
    """Each replica has the mean over its micro-batches; the ring sum of them is divided last."""
    accumulation = 5
    opts = options(accumulation=accumulation).replicationFactor(replicas)
    running = poptorch.MeanReductionStrategy.Running
    opts.Training.setMeanAccumulationAndReplicationReductionStrategy(running)
    x = torch.randn(accumulation, replicas) * 3
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(w * x, "sum"),
        [torch.zeros(1)],
        [(x.flatten(),)],
        optimizer=lambda p: poptorch.optim.SGD(p, lr=1.0, accum_type=dtype),
        opts=opts,
    )
    means = torch.zeros(replicas, dtype=dtype)
    for n, row in enumerate(x):
        means = torch.lerp(means.float(), row.to(dtype).float(), 1 / (n + 1)).to(dtype)
    total = means[1]
    for replica in [*range(2, replicas), 0]:
        total = total + means[replica]
    torch.testing.assert_close(after, -total.float()[None] / replicas, rtol=1e-6, atol=0)
    assert after.item() == pytest.approx(-x.double().mean().item(), abs=3e-3)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_velocity_when_typed_then_is_rounded_to_it_and_the_step_is_not(
    dtype: torch.dtype, nesterov: bool
) -> None:
    gradients = torch.randn(20, 3)
    start = torch.tensor([0.8, -1.3, 0.1])
    told = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(w * x, "sum"),
        [start],
        [(gradient[None],) for gradient in gradients],
        optimizer=lambda p: poptorch.optim.SGD(p, velocity_accum_type=dtype, **told),
    )
    rounding = {torch.float32: reference.exact, torch.float16: reference.half}
    expected, other = (
        torch.tensor(
            [
                reference.sgd(w, column.tolist(), first=rounding[kind], **told)
                for w, column in zip(start.tolist(), gradients.t(), strict=True)
            ]
        )
        for kind in (dtype, torch.float16 if dtype is torch.float32 else torch.float32)
    )
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=2e-6)
    assert (after - other).abs().max() > 2e-5  # The two types can be told apart.


@pytest.mark.parametrize("moment", ["wrapped", "replaced", "changed"])
def test_options_when_accumulating_in_half_then_executors_own_show_the_running_mean(
    moment: str,
) -> None:
    """Options that the program still holds stay unchanged, because they are frozen."""
    opts = options(accumulation=2)
    model = Function(lambda x, w: poptorch.identity_loss(w * x, "sum"), torch.zeros(1))

    def optimizer(dtype: torch.dtype) -> poptorch.optim.SGD:
        return poptorch.optim.SGD(model.parameters(), lr=1.0, accum_type=dtype)

    first = optimizer(torch.float16 if moment == "wrapped" else torch.float32)
    training = poptorch.trainingModel(model, opts, first)
    held = training.options
    if moment == "replaced":
        training.setOptimizer(optimizer(torch.float16))
    if moment == "changed":
        first.accum_type = torch.float16
    training(torch.tensor([1.0, 3.0]))
    strategy = "meanAccumulationAndReplicationReductionStrategy"
    assert training.options.Training(strategy) is poptorch.MeanReductionStrategy.Running
    assert training._compiled().config.is_running_mean
    with pytest.raises(AttributeError, match="frozen"):
        training.options.deviceIterations(2)
    assert opts.Training(strategy) is poptorch.MeanReductionStrategy.Post
    if moment != "wrapped":
        assert held.Training(strategy) is poptorch.MeanReductionStrategy.Post

"""`Options.Precision.enableStochasticRounding` in whole models (semantics §7.3, §6.7, §4)."""

from __future__ import annotations

import math

import pytest
import torch
from support.models import FAMILIES
from support.small_models import options, run, trained

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Stochastic rounding", fidelity="exact")

ELEMENTS = 40_000


def rounding(*, is_on: bool = True, **settings) -> poptorch.Options:
    result = options(**settings)
    result.Precision.enableStochasticRounding(is_on)
    return result


def assert_unbiased(draws: torch.Tensor, exact: float) -> None:
    """Checks that draws take two neighbouring values with the mean `exact` (5 standard errors)."""
    values = draws.unique().double()
    assert len(values) == 2, values
    step = (values[1] - values[0]).item()
    error = draws.double().mean().item() - exact
    assert abs(error) < 5 * step / 2 / math.sqrt(draws.numel())


_ROUNDED = {
    "cast": (lambda x: x.half(), 1.0003, 1.0003),
    "multiply": (lambda x: x.half() * (x.half() * 0 + 1.0009765625), 1.5, 1.5 * 1.0009765625),
    "add": (lambda x: x.half() + 0.0001, 1.0, 1.0001),
    "exp": (lambda x: x.half().exp(), 1.0, math.e),
    "matmul": (lambda x: x.half().unsqueeze(1) @ x.half()[:1].unsqueeze(1), 1.0009765625, None),
    "dropout": (lambda x: torch.nn.functional.dropout(x.half(), 0.1).clamp(min=1.05), 1.0, None),
}


@pytest.mark.parametrize("name", _ROUNDED)
def test_result_when_rounded_then_is_unbiased(name: str) -> None:
    function, value, exact = _ROUNDED[name]
    x = torch.full((ELEMENTS,), value)
    result = run(function, x, opts=rounding())
    assert result.dtype is torch.float16
    if name == "matmul":
        exact = value * value
    if name == "dropout":
        kept = result[result > 1.06]
        return assert_unbiased(kept, 1 / 0.9)
    assert_unbiased(result, exact)


@pytest.mark.parametrize("name", _ROUNDED)
def test_result_when_option_is_off_then_is_rounded_to_nearest(name: str) -> None:
    function, value, _ = _ROUNDED[name]
    x = torch.full((1000,), value)
    first, second = (run(function, x, opts=rounding(is_on=False, seed=s)) for s in (1, 2))
    assert len(first[first > 1.06].unique() if name == "dropout" else first.unique()) == 1
    if name != "dropout":
        assert torch.equal(first, second)


def test_result_when_representable_then_is_exact() -> None:
    x = torch.randn(1000).half()
    function = lambda x: (x * 2, x.float().half(), x.relu(), x.max(), x.reshape(10, 100).t())  # noqa: E731
    for value, expected in zip(run(function, x, opts=rounding()), function(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_bits_when_seed_is_the_same_then_are_the_same_and_calls_differ() -> None:
    x = torch.rand(1000)
    one = poptorch.inferenceModel(_Cast(), rounding(seed=3))
    two = poptorch.inferenceModel(_Cast(), rounding(seed=3))
    other = poptorch.inferenceModel(_Cast(), rounding(seed=4))
    first = one(x)
    assert torch.equal(first, two(x))
    assert not torch.equal(first, one(x)) and not torch.equal(first, other(x))


class _Cast(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


@pytest.mark.parametrize("is_on", [False, True], ids=["nearest", "stochastic"])
def test_update_when_below_half_a_step_then_only_stochastic_rounding_moves_the_mean(
    is_on: bool,
) -> None:
    """Twenty updates of 2^-14 to weights near 1, whose neighbours are 2^-11 below."""
    weight = torch.ones(ELEMENTS).half()
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(w * x, "sum"),
        [weight],
        [(torch.ones(1).half(),)] * 20,
        optimizer=lambda p: poptorch.optim.SGD(p, lr=2.0**-14),
        opts=rounding(is_on=is_on),
    )
    moved = 1.0 - after.double().mean().item()
    if not is_on:
        assert moved == 0.0
        return
    # Each update adds a variance of at most a quarter of a squared step.
    sigma = 2.0**-11 / 2 * math.sqrt(20 / ELEMENTS)
    assert abs(moved - 20 * 2.0**-14) < 5 * sigma


@pytest.mark.parametrize("is_mean", [False, True], ids=["sum", "running mean"])
def test_accumulator_when_half_then_contributions_are_unbiased(is_mean: bool) -> None:
    """A contribution of 1, then seven that are below half a step of the sum."""
    opts = rounding(accumulation=8)
    kind = poptorch.ReductionType.Mean if is_mean else poptorch.ReductionType.Sum
    opts.Training.accumulationAndReplicationReductionType(kind)
    x = torch.tensor([1.0] + [2.0**-13] * 7)
    (after,) = trained(
        lambda x, w: poptorch.identity_loss(w * x, "sum"),
        [torch.zeros(ELEMENTS)],
        [(x,)],
        optimizer=lambda p: poptorch.optim.SGD(p, lr=1.0, accum_type=torch.float16),
        opts=opts,
    )
    exact = x.double().sum().item() / (8 if is_mean else 1)
    error = -after.double().mean().item() - exact
    assert abs(error) < 5 * 2.0**-10 * math.sqrt(8 / ELEMENTS)
    assert len(after.unique()) > 1


def test_adam_when_states_are_half_then_stays_near_float32() -> None:
    def after(opts: poptorch.Options, dtype: torch.dtype) -> torch.Tensor:
        return trained(
            lambda x, w: poptorch.identity_loss((w * x).square(), "sum"),
            [torch.ones(2000)],
            [(torch.ones(1),)] * 30,
            optimizer=lambda p: poptorch.optim.Adam(
                p,
                lr=0.01,
                first_order_momentum_accum_type=dtype,
                second_order_momentum_accum_type=dtype,
            ),
            opts=opts,
        )[0]

    half = after(rounding(), torch.float16)
    single = after(options(), torch.float32)
    assert half.std() > 0
    torch.testing.assert_close(half.mean(), single.mean(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_model_when_rounded_stochastically_then_loss_follows_float32(family: str) -> None:
    batch = FAMILIES[family].batch(4)
    losses = {}
    for is_half in (False, True):
        torch.manual_seed(5)
        model = FAMILIES[family].make(1)
        cast = batch
        if is_half:
            model.half()
            cast = tuple(x.half() if x.is_floating_point() else x for x in batch)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05)
        training = poptorch.trainingModel(model, rounding(is_on=is_half), optimizer)
        losses[is_half] = torch.stack([training(*cast)[1].float().mean() for _ in range(4)])
        training.destroy()
    torch.testing.assert_close(losses[True], losses[False], rtol=0.02, atol=0.02)


def test_training_when_workers_differ_then_bits_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = []
    x, labels = FAMILIES["mlp"].batch(16)
    for workers in (1, 2):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
        torch.manual_seed(5)
        model = FAMILIES["mlp"].make(2).half()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        training = poptorch.trainingModel(model, rounding(accumulation=4), optimizer)
        losses = [training(x.half(), labels)[1] for _ in range(3)]
        training.destroy()
        results.append([*losses, *model.state_dict().values()])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)

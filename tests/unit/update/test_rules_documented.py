"""Worked examples of rules in which PopTorch differs from PyTorch."""

import pytest
import torch
from support.update_runner import hyper_values, initial_state, make_config, run_updates

from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind
from poptorch_emu.update.formulas.rules import update

_SGD = {"lr": 1.0, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.0, "nesterov": 0.0}
_LAMB = {
    "lr": 0.01,
    "beta1": 0.9,
    "beta2": 0.99,
    "eps": 1e-6,
    "weight_decay": 0.05,
    "max_weight_norm": 65500.0,
}


def test_sgd_when_dampened_then_velocity_starts_at_zero():
    config = make_config(Kind.SGD2, _SGD)
    ones = torch.ones(3)
    velocities = [run_updates(config, ones, [ones] * count)[1]["Accl1"][0] for count in (1, 2, 3)]
    # The worked example of PopTorch's rule: constant gradient 1; PyTorch has 1, 1.4, 1.76.
    torch.testing.assert_close(torch.stack(velocities), torch.tensor([0.5, 0.95, 1.355]))


@pytest.mark.parametrize("is_combined", [False, True], ids=["separate", "combined"])
def test_sgd_when_momentum_is_constant_zero_then_dampening_still_counts(is_combined):
    settings = {**_SGD, "lr": 0.1, "momentum": 0.0, "dampening": 0.25, "weight_decay": 0.5}
    config = make_config(Kind.SGD1 if is_combined else Kind.SGD2, settings)
    weight, state = run_updates(config, torch.tensor([2.0]), [torch.tensor([1.0])])
    assert state == {}
    # w (1 - lr (1 - dm) wd) - lr (1 - dm) g = 2 (1 - 0.0375) - 0.075
    torch.testing.assert_close(weight, torch.tensor([1.85]))


def test_sgd_when_momentum_is_variable_zero_then_keeps_a_velocity():
    config = make_config(Kind.SGD2, {**_SGD, "momentum": 0.0}, is_constant=False)
    weight, state = run_updates(config, torch.tensor([2.0]), [torch.tensor([1.0])])
    torch.testing.assert_close(state["Accl1"], torch.tensor([0.5]))
    torch.testing.assert_close(weight, torch.tensor([1.5]))


def test_lamb_when_a_norm_is_zero_then_ratio_is_one():
    config = make_config(Kind.LAMB, {**_LAMB, "eps": 0.0})
    result, _ = run_updates(config, torch.zeros(4), [torch.ones(4)])
    torch.testing.assert_close(result, torch.full((4,), -0.01))
    undecayed = make_config(Kind.LAMB, {**_LAMB, "weight_decay": 0.0})
    result, _ = run_updates(undecayed, torch.ones(4), [torch.zeros(4)])
    torch.testing.assert_close(result, torch.ones(4))


def test_update_when_called_then_changes_nothing_in_place():
    config = make_config(Kind.ADAM, {k: v for k, v in _LAMB.items() if k != "max_weight_norm"})
    weight, gradient = torch.randn(4), torch.randn(4)
    state = initial_state(config, weight)
    inputs = [weight, gradient, *state.values()]
    before = [tensor.clone() for tensor in inputs]
    update(config, 0, weight, gradient, state, hyper_values(config))
    for tensor, old in zip(inputs, before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [Kind.ADAM, Kind.ADAMW])
def test_adam_in_tensorflows_form_then_eps_is_added_before_the_correction(kind):
    hypers = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 0.5, "weight_decay": 0.0}
    config = make_config(kind, hypers, uses_tf_variant=True)
    weight, _ = run_updates(config, torch.tensor([2.0]), [torch.tensor([1.0]), torch.tensor([3.0])])
    expected, m, v = 2.0, 0.0, 0.0
    for step, g in enumerate((1.0, 3.0), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        rate = 0.01 * (1 - 0.99**step) ** 0.5 / (1 - 0.9**step)
        expected -= rate * m / (v**0.5 + 0.5)
    torch.testing.assert_close(weight, torch.tensor([expected]))

"""Fifty updates must give the bits of torch.optim's single-tensor code."""

import pytest
import torch
from support.update_runner import make_config, run_updates

from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind

_SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False}
_ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.02}
_RMSPROP = {"lr": 0.01, "alpha": 0.97, "eps": 1e-8, "weight_decay": 0.01, "momentum": 0.9}

_CASES = {
    "sgd_plain": (Kind.SGD2, torch.optim.SGD, {**_SGD, "momentum": 0.0, "weight_decay": 0.0}),
    "sgd_decay": (Kind.SGD2, torch.optim.SGD, {**_SGD, "momentum": 0.0}),
    "sgd_momentum": (Kind.SGD2, torch.optim.SGD, _SGD),
    "sgd_nesterov": (Kind.SGD2, torch.optim.SGD, {**_SGD, "nesterov": True}),
    "sgd_combined": (Kind.SGD1, torch.optim.SGD, {**_SGD, "velocity_scaling": 2.0}),
    "adam": (Kind.ADAM, torch.optim.Adam, {**_ADAM, "weight_decay": 0.0}),
    "adam_decay": (Kind.ADAM, torch.optim.Adam, _ADAM),
    "adamw": (Kind.ADAMW, torch.optim.AdamW, _ADAM),
    "adamw_no_bias": (Kind.ADAMW_NO_BIAS, torch.optim.AdamW, _ADAM),
    "rmsprop": (Kind.RMSPROP, torch.optim.RMSprop, {**_RMSPROP, "momentum": 0.0}),
    "rmsprop_momentum": (Kind.RMSPROP, torch.optim.RMSprop, _RMSPROP),
    "rmsprop_centered": (
        Kind.RMSPROP_CENTERED,
        torch.optim.RMSprop,
        {**_RMSPROP, "momentum": 0.0, "centered": True},
    ),
    "rmsprop_centered_momentum": (
        Kind.RMSPROP_CENTERED,
        torch.optim.RMSprop,
        {**_RMSPROP, "centered": True},
    ),
}
# A variable momentum of 0 keeps a buffer that PyTorch does not have; that rounds once more.
_OTHER_ROUNDING = {("rmsprop", False), ("rmsprop_centered", False)}


def _torch_result(optimizer_class, settings, weight, gradients):
    settings = {name: v for name, v in settings.items() if name != "velocity_scaling"}
    if "beta1" in settings:
        settings["betas"] = (settings.pop("beta1"), settings.pop("beta2"))
    parameter = weight.clone().requires_grad_()
    optimizer = optimizer_class([parameter], foreach=False, **settings)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("case", _CASES)
def test_rule_when_torch_has_it_then_same_bits(case, is_constant):
    kind, optimizer_class, settings = _CASES[case]
    weight = torch.randn(37, 11)
    gradients = [torch.randn(37, 11) for _ in range(50)]
    hypers = {name: value for name, value in settings.items() if name != "centered"}

    result, _ = run_updates(make_config(kind, hypers, is_constant), weight, gradients)

    expected = _torch_result(optimizer_class, settings, weight, gradients)
    tolerance = 1e-6 if (case, is_constant) in _OTHER_ROUNDING else 0.0
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("case", _CASES)
def test_rule_when_the_weight_is_0d_then_stays_float32(case, is_constant):
    kind, optimizer_class, settings = _CASES[case]
    weight, gradients = torch.tensor(1.5), [torch.randn(()) for _ in range(5)]
    hypers = {name: value for name, value in settings.items() if name != "centered"}

    result, state = run_updates(make_config(kind, hypers, is_constant), weight, gradients)

    assert {result.dtype, *(value.dtype for value in state.values())} == {torch.float32}
    expected = _torch_result(optimizer_class, settings, weight, gradients)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)

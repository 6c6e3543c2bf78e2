"""From optimiser objects to configurations: rules, constness, groups, refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.optim.optimizer_conversion import (
    check_reduction,
    needs_running_mean,
    optimizer_config,
)
from poptorch_emu.update.formulas.loss_scale import LossScaleRule
from poptorch_emu.update.formulas.optimizer_config import Hyper, OptimizerConfig, OptimizerKind

pytestmark = pytest.mark.feature("Optimisers of torch.optim", fidelity="exact")

K = OptimizerKind
ours, torchs = poptorch.optim, torch.optim


def parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.randn(2)) for name in ("a", "b", "c")}


def convert(
    kind: type[torch.optim.Optimizer], /, groups: Any = None, **arguments: Any
) -> OptimizerConfig:
    named = parameters()
    arguments.setdefault("lr", 0.1)
    members = list(named.values()) if groups is None else groups(named)
    return optimizer_config(kind(members, **arguments), named)


@pytest.mark.parametrize(
    "kind, arguments, expected",
    [
        (torchs.SGD, {}, K.SGD2),
        (ours.SGD, {}, K.SGD2),
        (ours.SGD, {"use_combined_accum": True}, K.SGD1),
        (torchs.Adam, {}, K.ADAM),
        (ours.Adam, {}, K.ADAM),
        (torchs.AdamW, {}, K.ADAMW),
        (ours.AdamW, {}, K.ADAMW),
        (ours.AdamW, {"bias_correction": False}, K.ADAMW_NO_BIAS),
        (torchs.RMSprop, {}, K.RMSPROP),
        (torchs.RMSprop, {"centered": True}, K.RMSPROP_CENTERED),
        (ours.RMSprop, {"centered": True}, K.RMSPROP_CENTERED),
        (ours.LAMB, {}, K.LAMB),
        (ours.LAMB, {"bias_correction": False}, K.LAMB_NO_BIAS),
    ],
)
def test_kind_when_converted_then_is_the_rule(
    kind: type, arguments: dict[str, Any], expected: K, caplog: pytest.LogCaptureFixture
) -> None:
    assert convert(kind, **arguments).kind is expected
    assert "subclassed" not in caplog.text


def test_kind_when_unknown_then_raises() -> None:
    with pytest.raises(AssertionError, match="Unsupported optimizer type. Types supported"):
        convert(torchs.Adagrad)


def test_kind_when_groups_disagree_on_centered_then_raises() -> None:
    def groups(named: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": [named["a"]]}, {"params": [named["b"]], "centered": True}]

    with pytest.raises(AssertionError, match="All parameter groups must have the same value") as e:
        convert(torchs.RMSprop, groups)
    assert "centered" in str(e.value) and "(Group 0: False / Group 1: True)" in str(e.value)


def constants(config: OptimizerConfig) -> set[str]:
    return {name for name, hyper in config.groups[1].hypers if hyper.is_constant}


@pytest.mark.parametrize(
    "kind, arguments, expected",
    [
        (torchs.SGD, {}, {"momentum", "dampening", "weight_decay", "nesterov"}),
        (torchs.SGD, {"momentum": 0.9, "weight_decay": 0.1}, {"dampening", "nesterov"}),
        (torchs.Adam, {}, {"beta1", "beta2", "eps", "weight_decay"}),
        (torchs.Adam, {"weight_decay": 1e-2, "eps": 1e-6}, {"beta1", "beta2"}),
        (torchs.AdamW, {}, {"beta1", "beta2", "eps", "weight_decay"}),
        (torchs.AdamW, {"weight_decay": 0.0}, {"beta1", "beta2", "eps"}),
        (torchs.RMSprop, {}, {"alpha", "eps", "weight_decay", "momentum"}),
        (torchs.RMSprop, {"alpha": 0.5, "momentum": 0.9}, {"alpha", "eps", "weight_decay"}),
        (ours.SGD, {"momentum": 0.0}, {"dampening", "weight_decay", "nesterov"}),
        (ours.SGD, {"momentum": 0.9, "nesterov": True}, {"dampening", "weight_decay"}),
        (ours.Adam, {"betas": (0.5, 0.6)}, {"eps", "weight_decay"}),
        (ours.LAMB, {}, {"beta1", "beta2", "eps", "weight_decay", "max_weight_norm"}),
    ],
)
def test_constness_when_converted_then_follows_class_or_value(
    kind: type, arguments: dict[str, Any], expected: set[str]
) -> None:
    assert constants(convert(kind, **arguments)) == expected


def test_constness_when_poptorch_lr_is_default_then_constant() -> None:
    named = parameters()
    config = optimizer_config(ours.Adam(named.values()), named)
    assert config.groups[1]["lr"] == Hyper(1e-3, is_constant=True)


@pytest.mark.parametrize("is_automatic", [False, True], ids=["fixed", "automatic"])
def test_loss_scaling_when_automatic_then_variable(is_automatic: bool) -> None:
    named = parameters()
    optimizer = ours.SGD(named.values(), lr=0.1)
    rule = LossScaleRule() if is_automatic else None
    config = optimizer_config(optimizer, named, loss_scale_rule=rule)
    assert config.loss_scaling == Hyper(1.0, is_constant=not is_automatic)


def test_groups_when_some_parameters_are_left_out_then_they_have_the_defaults() -> None:
    config = convert(
        ours.SGD,
        lambda named: [{"params": [named["c"]], "lr": 0.3}, {"params": [named["a"]]}],
        lr=0.2,
    )
    assert config.group_of_parameter == (2, 0, 1)
    assert [group["lr"].value for group in config.groups] == [0.2, 0.3, 0.2]


def test_groups_when_a_parameter_is_a_stranger_then_raises() -> None:
    with pytest.raises(KeyError, match="not part of the model: the model has none of that shape"):
        convert(ours.SGD, lambda named: [torch.nn.Parameter(torch.ones(3, 7))])


def test_groups_when_the_model_was_copied_then_the_error_names_a_parameter_of_each_side() -> None:
    with pytest.raises(KeyError) as caught:
        convert(ours.SGD, lambda named: [named["a"], torch.nn.Parameter(named["b"].clone())])
    text = str(caught.value)
    assert text.startswith("Parameter 1 of group 0 of SGD, of shape [")
    assert "of the model has that shape, but is another tensor. Was the model copied" in text


def test_attributes_when_given_then_are_in_the_configuration() -> None:
    half = torch.float16
    adam = convert(
        ours.Adam,
        accum_type=half,
        first_order_momentum_accum_type=half,
        second_order_momentum_accum_type=torch.float32,
        max_grad_norm=2.0,
    )
    assert (adam.accum_type, adam.first_order_type, adam.second_order_type) == (
        half,
        half,
        torch.float32,
    )
    assert adam.max_grad_norm == 2.0 and convert(torchs.Adam).max_grad_norm == math.inf
    assert convert(ours.SGD, velocity_accum_type=half).velocity_type is half
    assert convert(ours.RMSprop, use_tf_variant=True).uses_tf_variant


@pytest.mark.parametrize("kind", [torchs.Adam, ours.AdamW], ids=["torch", "poptorch"])
def test_amsgrad_when_on_then_raises(kind: type) -> None:
    with pytest.raises(ValueError, match="Only non-amsgrad Adam/AdamW optimizers are supported"):
        convert(kind, amsgrad=True)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("lr", "fast", "Expected a number for lr but got fast instead"),
        ("betas", [0.9, 0.99], r"Expected a pair for betas but got \[0.9, 0.99\] instead"),
        ("betas", (0.9,), r"Expected a pair for betas but got \(0.9,\) instead"),
    ],
    ids=["text", "list", "one"],
)
def test_value_when_of_wrong_type_then_raises(name: str, value: object, message: str) -> None:
    named = parameters()
    optimizer = ours.Adam(named.values(), lr=0.1)
    optimizer.param_groups[0][name] = value
    with pytest.raises(AssertionError, match=message):
        optimizer_config(optimizer, named)


def test_value_when_missing_then_raises() -> None:
    named = parameters()
    optimizer = ours.SGD(named.values(), lr=0.1)
    del optimizer.param_groups[0]["momentum"]
    with pytest.raises(AssertionError, match="Mandatory attribute momentum not found in optimizer"):
        optimizer_config(optimizer, named)
    optimizer = ours.SGD(named.values(), lr=0.1)
    del optimizer.loss_scaling
    with pytest.raises(
        AssertionError,
        match="Mandatory attribute loss_scaling not found in optimizer attributes",
    ):
        optimizer_config(optimizer, named)


def test_max_grad_norm_when_nan_then_raises() -> None:
    with pytest.raises(poptorch.Error, match="Maximum norm of gradients cannot be NaN"):
        convert(ours.SGD, max_grad_norm=math.nan)


@pytest.mark.parametrize(
    "kind, name, value, message",
    [
        (ours.SGD, "lr", -0.5, r"Negative learning rate \(-0.5\) in SGD"),
        (ours.SGD, "weight_decay", -0.5, r"Negative weight decay \(-0.5\) in SGD"),
        (ours.Adam, "lr", -0.5, r"Negative learning rate \(-0.5\) in Adam"),
        (ours.LAMB, "lr", -0.5, r"Negative learning rate \(-0.5\) in Adam"),
        (ours.Adam, "betas", (0.9, -0.5), r"Negative beta2 \(-0.5\) in Adam"),
        (ours.AdamW, "eps", 0.0, r"Non-positive eps \(0\) in Adam is not supported"),
        (ours.RMSprop, "alpha", -0.5, r"Negative alpha \(-0.5\) in Adaptive"),
        (ours.RMSprop, "eps", 0.0, r"Non-positive eps \(0\) in Adaptive is not supported"),
    ],
)
def test_value_when_outside_the_rule_then_raises(
    kind: type, name: str, value: object, message: str
) -> None:
    named = parameters()
    optimizer = kind(named.values(), lr=0.1)
    optimizer.param_groups[0][name] = value
    with pytest.raises(poptorch.Error, match=message) as error:
        optimizer_config(optimizer, named)
    assert error.value.type == "popart_exception"


def test_sgd_when_lr_is_constant_zero_then_raises_but_not_when_variable() -> None:
    named = parameters()
    optimizer = ours.SGD(named.values(), lr=0.0)
    optimizer_config(optimizer, named)
    optimizer.variable_attrs.markAsConstant("lr")
    with pytest.raises(poptorch.Error, match="Constant, zero learning rate in SGD"):
        optimizer_config(optimizer, named)


def test_sgd_when_velocity_scaling_is_not_positive_then_raises() -> None:
    with pytest.raises(
        poptorch.Error, match=r"Non-positive velocity scaling \(0\) in SGD is not supported"
    ):
        convert(ours.SGD, use_combined_accum=True, velocity_scaling=0.0)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, False),
        ({"accum_type": torch.float16}, True),
        ({"accum_type": torch.float16, "use_combined_accum": True}, False),
    ],
    ids=["single", "half", "half-combined"],
)
def test_running_mean_when_accumulating_in_half_then_needed(
    arguments: dict[str, Any], expected: bool
) -> None:
    optimizer = ours.SGD(parameters().values(), lr=0.1, **arguments)
    assert needs_running_mean(optimizer) is expected
    check_reduction(optimizer, is_running_mean=True)
    if expected:
        with pytest.raises(ValueError, match="Invalid optimizer.*is already compiled") as error:
            check_reduction(optimizer, is_running_mean=False)
        assert "poptorch.MeanReductionStrategy.Running" in str(error.value)

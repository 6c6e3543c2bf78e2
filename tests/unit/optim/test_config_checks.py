"""Changes after compilation, by the table of PopTorch's reference on optimisers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.optim.config_checks import check_compatible
from poptorch_emu.optim.optimizer_conversion import optimizer_config

ours, torchs = poptorch.optim, torch.optim
HALF = torch.float16
NAMED = {name: torch.nn.Parameter(torch.ones(2)) for name in ("a", "b")}


def convert(kind: type[torch.optim.Optimizer], **arguments: Any):
    arguments.setdefault("lr", 0.1)
    return optimizer_config(kind(list(NAMED.values()), **arguments), NAMED)


@pytest.mark.parametrize(
    "kind, before, after",
    [
        (ours.SGD, {"lr": 0.1}, {"lr": 0.2}),
        (ours.SGD, {"momentum": 0.0}, {"momentum": 0.9}),
        (ours.SGD, {"loss_scaling": 1.0}, {"loss_scaling": 2.0}),
        (ours.Adam, {"betas": (0.9, 0.99), "eps": 1e-8}, {"betas": (0.5, 0.6), "eps": 1e-3}),
        (ours.RMSprop, {"alpha": 0.9}, {"alpha": 0.5}),
        (ours.LAMB, {"max_weight_norm": 1.0}, {"max_weight_norm": 2.0}),
        (
            ours.SGD,
            {"momentum": 0.9, "nesterov": False},
            {"momentum": 0.9, "nesterov": True},
        ),
        (torchs.SGD, {"lr": 0.1}, {"lr": 0.2}),
        (torchs.Adam, {"weight_decay": 0.1}, {"weight_decay": 0.2}),
        (ours.SGD, {"max_grad_norm": 2.0}, {"max_grad_norm": 2.0}),
    ],
)
def test_replacement_when_only_variable_values_differ_then_accepted(
    kind: type, before: dict[str, Any], after: dict[str, Any]
) -> None:
    check_compatible(convert(kind, **before), convert(kind, **after))


def test_replacement_when_torch_and_poptorch_agree_then_accepted() -> None:
    check_compatible(convert(torchs.SGD), convert(ours.SGD))


REFUSED: dict[str, tuple[tuple[type, dict[str, Any]], tuple[type, dict[str, Any]], str]] = {
    "class": ((ours.SGD, {}), (ours.Adam, {}), "Can not replace optimizer of type"),
    "adam-adamw": ((ours.Adam, {}), (ours.AdamW, {}), "Weight decay modes do not match"),
    "adam-lamb": ((ours.Adam, {}), (ours.LAMB, {}), "do not match|Can not replace optimizer"),
    "centered": (
        (ours.RMSprop, {"centered": False}),
        (ours.RMSprop, {"centered": True}),
        "Adaptive modes do not match",
    ),
    "clip-norm": ((ours.SGD, {}), (ours.SGD, {"max_grad_norm": 1.0}), "Clip norm settings do not"),
    "combined": (
        (ours.SGD, {"momentum": 0.9}),
        (ours.SGD, {"momentum": 0.9, "use_combined_accum": True}),
        "SGDAccumulatorAndMomentum",
    ),
    "accumulator-type": (
        (ours.SGD, {"momentum": 0.9}),
        (ours.SGD, {"momentum": 0.9, "velocity_accum_type": HALF}),
        "SGDAccumulatorAndMomentum",
    ),
    "velocity-appears": (
        (torchs.SGD, {}),
        (torchs.SGD, {"momentum": 0.9}),
        "does not require a velocity tensor, but other does",
    ),
    "constant-to-variable": (
        (torchs.SGD, {}),
        (torchs.SGD, {"weight_decay": 0.1}),
        "Problem with weight decays. Can not replace a constant value with a non constant value",
    ),
    "variable-to-constant": (
        (torchs.SGD, {"weight_decay": 0.1}),
        (torchs.SGD, {}),
        "Can not replace a constant value with a non constant value",
    ),
    "nesterov": (
        (ours.SGD, {"momentum": 0.9}),
        (ours.SGD, {"momentum": 0.9, "nesterov": True}),
        "Problem with nesterov. Can not replace a constant value with a non constant value",
    ),
    "torch-nesterov": (
        (torchs.SGD, {"momentum": 0.9}),
        (torchs.SGD, {"momentum": 0.9, "nesterov": True}),
        "Problem with nesterov. Values are constant but do not match.",
    ),
    "tensorflow-variant": (
        (ours.RMSprop, {}),
        (ours.RMSprop, {"use_tf_variant": True}),
        "Adaptive modes do not match",
    ),
    "bias-correction": (
        (ours.LAMB, {}),
        (ours.LAMB, {"bias_correction": False}),
        "Adam modes do not match",
    ),
    "torch-betas": (
        (torchs.Adam, {"betas": (0.9, 0.99)}),
        (torchs.Adam, {"betas": (0.8, 0.99)}),
        "Problem with beta1s. Values are constant but do not match.",
    ),
    "torch-alpha": (
        (torchs.RMSprop, {"alpha": 0.9}),
        (torchs.RMSprop, {"alpha": 0.8}),
        "Problem with alphas. Values are constant but do not match.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_replacement_when_compiled_in_then_refused(name: str) -> None:
    (old_kind, old), (new_kind, new), message = REFUSED[name]
    with pytest.raises(poptorch.Error, match=message) as error:
        check_compatible(convert(old_kind, **old), convert(new_kind, **new))
    assert error.value.type == "popart_exception"


@pytest.mark.parametrize(
    "kind, attribute, value, plural",
    [
        (ours.SGD, "lr", 0.5, "learning rates"),
        (ours.SGD, "weight_decay", 0.5, "weight decays"),
        (ours.Adam, "betas", (0.9, 0.5), "beta2s"),
        (ours.Adam, "eps", 0.5, "eps"),
        (ours.LAMB, "max_weight_norm", 0.5, "mwn"),
        (ours.RMSprop, "alpha", 0.5, "alphas"),
    ],
)
def test_replacement_when_a_constant_changes_then_message_names_it(
    kind: type, attribute: str, value: Any, plural: str
) -> None:
    optimizer = kind(list(NAMED.values()), lr=0.1)
    optimizer.variable_attrs.markAsConstant(attribute)
    old = optimizer_config(optimizer, NAMED)
    optimizer.param_groups[0][attribute] = value
    expected = f"Problem with {plural}. Values are constant but do not match."
    with pytest.raises(poptorch.Error, match=expected):
        check_compatible(old, optimizer_config(optimizer, NAMED))


def test_replacement_when_loss_scaling_is_constant_then_message_names_it() -> None:
    optimizer = ours.SGD(list(NAMED.values()), lr=0.1)
    old = optimizer_config(optimizer, NAMED)
    optimizer.loss_scaling = 2.0
    with pytest.raises(poptorch.Error, match="Problem with loss scaling"):
        check_compatible(old, optimizer_config(optimizer, NAMED))


def test_replacement_when_groups_differ_then_refused() -> None:
    split = ours.SGD([{"params": [NAMED["a"]]}, {"params": [NAMED["b"]]}], lr=0.1)
    with pytest.raises(poptorch.Error, match="groups"):
        check_compatible(convert(ours.SGD), optimizer_config(split, NAMED))

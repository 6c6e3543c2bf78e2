"""Every update rule against scalar float64 code written from the published formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import update_reference as reference
from support.update_runner import make_config, run_updates

from poptorch_emu.update.formulas.optimizer_config import OptimizerKind as Kind

NUM_UPDATES, SIZE = 50, 4
# Float32 against float64 over 50 updates; centered RMSprop subtracts two near numbers.
RTOL, ATOL = 2e-5, 1e-6

SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": 0.0}
ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
LAMB = {**ADAM, "max_weight_norm": 65500.0}
RMSPROP = {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.05, "momentum": 0.0}
L2, DECOUPLED = {"is_decoupled": False}, {"is_decoupled": True}
CORRECTED, UNCORRECTED = {"is_corrected": True}, {"is_corrected": False}

# (rule, hyper-parameters, reference, further arguments of the reference)
CASES: dict[str, tuple[Kind, dict[str, float], Callable[..., Any], dict[str, bool]]] = {
    "sgd": (Kind.SGD2, {**SGD, "momentum": 0.0}, reference.sgd, {}),
    "sgd-momentum": (Kind.SGD2, {**SGD, "weight_decay": 0.0}, reference.sgd, {}),
    "sgd-dampening": (Kind.SGD2, {**SGD, "dampening": 0.5}, reference.sgd, {}),
    "sgd-nesterov": (Kind.SGD2, {**SGD, "nesterov": 1.0}, reference.sgd, {}),
    "sgd-combined": (Kind.SGD1, {**SGD, "dampening": 0.3}, reference.sgd, {}),
    "adam": (Kind.ADAM, {**ADAM, "weight_decay": 0.0}, reference.adam, L2),
    "adam-decay": (Kind.ADAM, ADAM, reference.adam, L2),
    "adamw": (Kind.ADAMW, ADAM, reference.adam, DECOUPLED),
    "adamw-no-bias-is-adamw": (Kind.ADAMW_NO_BIAS, ADAM, reference.adam, DECOUPLED),
    "lamb": (Kind.LAMB, LAMB, reference.lamb, CORRECTED),
    "lamb-no-bias": (Kind.LAMB_NO_BIAS, LAMB, reference.lamb, UNCORRECTED),
    "lamb-bounded": (Kind.LAMB, {**LAMB, "max_weight_norm": 0.5}, reference.lamb, CORRECTED),
    "lamb-without-ratio": (Kind.LAMB, {**LAMB, "max_weight_norm": 0.0}, reference.lamb, CORRECTED),
} | {
    f"rmsprop{'-centered' * centered}{'-momentum' * (momentum > 0)}{'-tensorflow' * tensorflow}": (
        Kind.RMSPROP_CENTERED if centered else Kind.RMSPROP,
        {**RMSPROP, "momentum": momentum},
        reference.rmsprop,
        {"is_centered": centered, "is_tensorflow": tensorflow},
    )
    for centered in (False, True)
    for momentum in (0.0, 0.9)
    for tensorflow in (False, True)
}


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("name", CASES)
def test_update_when_50_steps_then_equals_formula(name: str, is_constant: bool) -> None:
    kind, hypers, rule, flags = CASES[name]
    weight, gradients = torch.randn(SIZE), torch.randn(NUM_UPDATES, SIZE)
    scaling = {"velocity_scaling": 8.0} if kind is Kind.SGD1 else {}
    config = make_config(
        kind, {**hypers, **scaling}, is_constant, uses_tf_variant=flags.get("is_tensorflow", False)
    )

    actual, _ = run_updates(config, weight, list(gradients))

    if rule is reference.lamb:
        expected = rule(weight.tolist(), gradients.tolist(), **hypers, **flags)
    else:
        expected = [
            rule(weight[i].item(), gradients[:, i].tolist(), **hypers, **flags) for i in range(SIZE)
        ]
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=RTOL, atol=ATOL)

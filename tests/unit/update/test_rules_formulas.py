"""The update rules against scalar float64 code written from the published formulas.

Sources: Sutskever et al. 2013 (momentum, with PopTorch's zero start and dampening), Kingma and Ba
2015 (Adam), Loshchilov and Hutter 2019 (AdamW), Hinton's lecture 6e and Graves 2013 (RMSprop, plain
and centered), TensorFlow's documentation of RMSprop (eps under the root, mean square from 1), You
et al. 2020 (LAMB).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from poptorch_emu.update.config import GroupConfig, Hyper, OptimizerConfig, OptimizerKind
from poptorch_emu.update.rules import state_names, update

NUM_UPDATES = 50
# Float32 against float64 over 50 updates; centered RMSprop subtracts two near numbers.
RTOL, ATOL = 2e-5, 1e-6

Series = list[list[float]]


def sgd(w: list[float], gradients: Series, *, lr, momentum, dampening, weight_decay, nesterov):
    v = [0.0] * len(w)
    for step in gradients:
        for i, raw in enumerate(step):
            g = raw + weight_decay * w[i]
            v[i] = momentum * v[i] + (1 - dampening) * g
            w[i] -= lr * (g + momentum * v[i] if nesterov else v[i])
    return w


def adam(w, gradients, *, lr, beta1, beta2, eps, weight_decay, decoupled):
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, step in enumerate(gradients, start=1):
        for i, raw in enumerate(step):
            g = raw if decoupled else raw + weight_decay * w[i]
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            u = m[i] / (1 - beta1**t) / (math.sqrt(v[i] / (1 - beta2**t)) + eps)
            w[i] -= lr * (u + weight_decay * w[i] if decoupled else u)
    return w


def lamb(w, gradients, *, lr, beta1, beta2, eps, weight_decay, max_weight_norm, corrected):
    m, v = [0.0] * len(w), [0.0] * len(w)
    for t, step in enumerate(gradients, start=1):
        q = []
        for i, g in enumerate(step):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            c1, c2 = (1 - beta1**t, 1 - beta2**t) if corrected else (1.0, 1.0)
            q.append(m[i] / c1 / (math.sqrt(v[i] / c2) + eps) + weight_decay * w[i])
        r1, r2 = math.hypot(*w), math.hypot(*q)
        bounded = min(r1, max_weight_norm)
        ratio = bounded / r2 if bounded > 0 and r2 > 0 else 1.0
        w = [x - lr * ratio * y for x, y in zip(w, q, strict=True)]
    return w


def rmsprop(w, gradients, *, lr, alpha, eps, weight_decay, momentum, centered, tf):
    s = [1.0 if tf else 0.0] * len(w)
    a, b = [0.0] * len(w), [0.0] * len(w)
    for step in gradients:
        for i, raw in enumerate(step):
            g = raw + weight_decay * w[i]
            s[i] = alpha * s[i] + (1 - alpha) * g * g
            a[i] = alpha * a[i] + (1 - alpha) * g
            spread = s[i] - a[i] ** 2 if centered else s[i]
            u = g / math.sqrt(spread + eps) if tf else g / (math.sqrt(spread) + eps)
            if tf:
                b[i] = momentum * b[i] + lr * u
                w[i] -= b[i]
            else:
                b[i] = momentum * b[i] + u
                w[i] -= lr * b[i]
    return w


SGD = dict(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=0.0)
ADAM = dict(lr=0.01, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0)
LAMB = dict(ADAM, max_weight_norm=65500.0)
RMSPROP = dict(lr=0.01, alpha=0.9, eps=1e-3, weight_decay=0.0, momentum=0.0)
K = OptimizerKind

CASES: dict[str, tuple[OptimizerKind, dict[str, float], Callable[..., Any], dict[str, Any]]] = {
    "sgd": (K.SGD2, {**SGD, "momentum": 0.0}, sgd, {}),
    "sgd-decay": (K.SGD2, {**SGD, "momentum": 0.0, "weight_decay": 0.1}, sgd, {}),
    "sgd-dampening-without-momentum": (
        K.SGD2,
        {**SGD, "momentum": 0.0, "dampening": 0.5, "weight_decay": 0.1},
        sgd,
        {},
    ),
    "sgd-momentum": (K.SGD2, SGD, sgd, {}),
    "sgd-dampening": (K.SGD2, {**SGD, "dampening": 0.5, "weight_decay": 0.1}, sgd, {}),
    "sgd-nesterov": (K.SGD2, {**SGD, "nesterov": 1.0, "weight_decay": 0.1}, sgd, {}),
    "sgd-combined": (K.SGD1, {**SGD, "dampening": 0.3, "weight_decay": 0.1}, sgd, {}),
    "adam": (K.ADAM, ADAM, adam, {"decoupled": False}),
    "adam-decay": (K.ADAM, {**ADAM, "weight_decay": 0.1}, adam, {"decoupled": False}),
    "adamw": (K.ADAMW, {**ADAM, "weight_decay": 0.1}, adam, {"decoupled": True}),
    "adamw-no-bias-is-adamw": (
        K.ADAMW_NO_BIAS,
        {**ADAM, "weight_decay": 0.1},
        adam,
        {"decoupled": True},
    ),
    "lamb": (K.LAMB, {**LAMB, "weight_decay": 0.1}, lamb, {"corrected": True}),
    "lamb-no-bias": (K.LAMB_NO_BIAS, {**LAMB, "weight_decay": 0.1}, lamb, {"corrected": False}),
    "lamb-clamped": (K.LAMB, {**LAMB, "max_weight_norm": 0.5}, lamb, {"corrected": True}),
    "lamb-without-ratio": (K.LAMB, {**LAMB, "max_weight_norm": 0.0}, lamb, {"corrected": True}),
    **{
        f"rmsprop{'-centered' * centered}{'-momentum' * (momentum > 0)}{'-tf' * tf}": (
            K.RMSPROP_CENTERED if centered else K.RMSPROP,
            {**RMSPROP, "weight_decay": 0.05, "momentum": momentum},
            rmsprop,
            {"centered": centered, "tf": tf},
        )
        for centered in (False, True)
        for momentum in (0.0, 0.9)
        for tf in (False, True)
    },
}


def run(
    kind: OptimizerKind,
    hypers: dict[str, float],
    w: torch.Tensor,
    gradients: torch.Tensor,
    *,
    variable: bool = False,
    **config_arguments: Any,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Applies the rule once for each row of `gradients`."""
    group = GroupConfig(
        tuple(
            (name, Hyper(float(v), not variable or name == "nesterov"))
            for name, v in sorted(hypers.items())
        )
    )
    config = OptimizerConfig(kind, (group,), (0,), **config_arguments)
    state = {
        spec.name: torch.full(() if spec.is_scalar else w.shape, spec.initial, dtype=spec.dtype)
        for spec in state_names(config, group)
    }
    given = {
        name: hyper.value if hyper.is_constant else torch.tensor(hyper.value, dtype=torch.float64)
        for name, hyper in group.hypers
    }
    for gradient in gradients:
        w, state = update(config, 0, w, gradient, state, given)
    return w, state


@pytest.mark.parametrize("variable", [False, True], ids=["constant", "variable"])
@pytest.mark.parametrize("name", CASES)
def test_update_when_50_steps_then_equals_formula(name: str, variable: bool) -> None:
    kind, hypers, reference, flags = CASES[name]
    w, gradients = torch.randn(4), torch.randn(NUM_UPDATES, 4)
    expected = reference(w.double().tolist(), gradients.double().tolist(), **hypers, **flags)
    combined = {"velocity_scaling": 8.0} if kind is K.SGD1 else {}
    actual, _ = run(
        kind,
        {**hypers, **combined},
        w,
        gradients,
        variable=variable,
        uses_tf_variant=flags.get("tf", False),
    )
    assert actual.dtype is torch.float32
    torch.testing.assert_close(
        actual.double(), torch.tensor(expected).double(), rtol=RTOL, atol=ATOL
    )

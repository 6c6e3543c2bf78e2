"""The update rules, each one function of plain PyTorch.

Every rule takes a weight `w`, its gradient `g` (reduced, without loss scaling), its state and the
hyper-parameters, and returns the new weight and state; nothing is changed in place and no shape is
looked at, so that a rule is recorded once and serves every parameter. A constant hyper-parameter is
a float, one that may change a 0-d float64 tensor. The order of operations is that of torch.optim's
single-tensor code, where that has the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from poptorch_emu.update.config import GroupConfig, OptimizerConfig, OptimizerKind

Value = float | torch.Tensor
State = dict[str, torch.Tensor]
Hypers = Mapping[str, Value]

_ADAM_KINDS = {
    OptimizerKind.ADAM,
    OptimizerKind.ADAMW,
    OptimizerKind.ADAMW_NO_BIAS,
    OptimizerKind.LAMB,
    OptimizerKind.LAMB_NO_BIAS,
}
_LAMB_KINDS = {OptimizerKind.LAMB, OptimizerKind.LAMB_NO_BIAS}


@dataclass(frozen=True)
class StateSpec:
    """One state tensor of a rule, by PopART's prefix; of the weight's shape unless scalar."""

    name: str
    is_scalar: bool
    dtype: torch.dtype
    initial: float


def is_elementwise(kind: OptimizerKind) -> bool:
    """Returns whether the rule treats each element of a weight on its own."""
    return kind not in _LAMB_KINDS


def state_names(config: OptimizerConfig, group: GroupConfig) -> tuple[StateSpec, ...]:
    """Returns the state that the rule keeps for a weight of `group`."""
    kind = config.kind
    if kind in _ADAM_KINDS:
        return (
            StateSpec("Accl1", False, config.first_order_type, 0.0),
            StateSpec("Accl2", False, config.second_order_type, 0.0),
            StateSpec("Step", True, torch.float32, 0.0),
        )
    if kind in (OptimizerKind.RMSPROP, OptimizerKind.RMSPROP_CENTERED):
        first = 1.0 if config.uses_tf_variant else 0.0
        specs = [StateSpec("Accl1", False, config.first_order_type, first)]
        if kind is OptimizerKind.RMSPROP_CENTERED:
            specs.append(StateSpec("Accl2", False, config.second_order_type, 0.0))
        if not group.is_constant_zero("momentum"):
            specs.append(StateSpec("Accl3", False, torch.float32, 0.0))
        return tuple(specs)
    if group.is_constant_zero("momentum"):
        return ()
    name = "Accl" if kind is OptimizerKind.SGD1 else "Accl1"
    return (StateSpec(name, False, config.velocity_type, 0.0),)


def update(
    config: OptimizerConfig,
    group_index: int,
    weight: torch.Tensor,
    gradient: torch.Tensor,
    state: State,
    hyper: Hypers,
) -> tuple[torch.Tensor, State]:
    """Returns the weight and state after one step."""
    w, g = weight, gradient.to(weight.dtype)
    dtypes = {name: value.dtype for name, value in state.items()}
    working = {name: value.to(w.dtype) if value.dim() else value for name, value in state.items()}
    new_weight, new_state = _RULES[config.kind](config, w, g, working, hyper)
    return new_weight.to(w.dtype), {
        name: value.to(dtypes[name]) for name, value in new_state.items()
    }


def squared_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns the sum of the squares of all elements, 0-d float32."""
    total = gradients[0].float().square().sum()
    for gradient in gradients[1:]:
        total = total + gradient.float().square().sum()
    return total


def clip_factor(squared_norm_value: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Returns by what gradients are multiplied so that their global norm is at most `max_norm`."""
    return torch.clamp(max_norm / squared_norm_value.sqrt(), max=1.0)


def _sgd(
    config: OptimizerConfig, w: torch.Tensor, g: torch.Tensor, state: State, hyper: Hypers
) -> tuple[torch.Tensor, State]:
    lr, decay = hyper["lr"], hyper["weight_decay"]
    undamped = 1 - hyper["dampening"]
    if not state:
        step = _times(g, undamped)
        if not _is_zero(decay):
            step = step + w * (undamped * decay)
        return w - step * lr, {}
    ((name, velocity),) = state.items()
    if not _is_zero(decay):
        g = g + w * decay
    velocity = velocity * hyper["momentum"] + _times(g, undamped)
    direction = g + velocity * hyper["momentum"] if hyper["nesterov"] else velocity
    return w - direction * lr, {name: velocity}


def _adam(
    config: OptimizerConfig, w: torch.Tensor, g: torch.Tensor, state: State, hyper: Hypers
) -> tuple[torch.Tensor, State]:
    lr, decay = hyper["lr"], hyper["weight_decay"]
    if config.kind is OptimizerKind.ADAM:
        if not _is_zero(decay):
            g = g + w * decay
    elif not _is_zero(decay):
        w = w * (1 - lr * decay)
    moments, first, second = _moments(g, state, hyper)
    correction1, correction2 = _bias_corrections(moments["Step"], hyper)
    denominator = second.sqrt() / correction2.sqrt() + hyper["eps"]
    return w + first * (-lr / correction1) / denominator, moments


def _lamb(
    config: OptimizerConfig, w: torch.Tensor, g: torch.Tensor, state: State, hyper: Hypers
) -> tuple[torch.Tensor, State]:
    moments, first, second = _moments(g, state, hyper)
    if config.kind is OptimizerKind.LAMB:
        correction1, correction2 = _bias_corrections(moments["Step"], hyper)
        first, second = first / correction1, second / correction2
    direction = first / (second.sqrt() + hyper["eps"]) + w * hyper["weight_decay"]
    limit = hyper["max_weight_norm"]
    if _is_zero(limit):
        return w - direction * hyper["lr"], moments
    weight_norm, norm = w.float().square().sum().sqrt(), direction.float().square().sum().sqrt()
    bounded = torch.minimum(weight_norm, weight_norm * 0 + limit)
    ratio = torch.where((weight_norm > 0) & (norm > 0) & (bounded > 0), bounded / norm, 1.0)
    return w - direction * (ratio * hyper["lr"]), moments


def _rmsprop(
    config: OptimizerConfig, w: torch.Tensor, g: torch.Tensor, state: State, hyper: Hypers
) -> tuple[torch.Tensor, State]:
    lr, alpha, eps = hyper["lr"], hyper["alpha"], hyper["eps"]
    if not _is_zero(hyper["weight_decay"]):
        g = g + w * hyper["weight_decay"]
    square = state["Accl1"] * alpha + g * g * (1 - alpha)
    result = {"Accl1": square}
    if config.kind is OptimizerKind.RMSPROP_CENTERED:
        average = state["Accl2"] + (g - state["Accl2"]) * (1 - alpha)
        result["Accl2"] = average
        square = square - average * average
    denominator = (square + eps).sqrt() if config.uses_tf_variant else square.sqrt() + eps
    direction = g / denominator
    if "Accl3" not in state:
        return w - direction * lr, result
    if config.uses_tf_variant:
        result["Accl3"] = state["Accl3"] * hyper["momentum"] + direction * lr
        return w - result["Accl3"], result
    result["Accl3"] = state["Accl3"] * hyper["momentum"] + direction
    return w - result["Accl3"] * lr, result


def _moments(
    g: torch.Tensor, state: State, hyper: Hypers
) -> tuple[State, torch.Tensor, torch.Tensor]:
    """Returns the new state with its two moments."""
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    first, second = state["Accl1"], state["Accl2"]
    if isinstance(beta1, float):
        first = torch.lerp(first, g, 1 - beta1)
    else:
        first = first + (g - first) * (1 - beta1)
    if isinstance(beta2, float):
        second = torch.addcmul(second * beta2, g, g, value=1 - beta2)
    else:
        second = second * beta2 + g * g * (1 - beta2)
    return {"Accl1": first, "Accl2": second, "Step": state["Step"] + 1}, first, second


def _bias_corrections(step: torch.Tensor, hyper: Hypers) -> tuple[torch.Tensor, torch.Tensor]:
    count = step.double()
    return 1 - hyper["beta1"] ** count, 1 - hyper["beta2"] ** count


def _times(tensor: torch.Tensor, factor: Value) -> torch.Tensor:
    return tensor if isinstance(factor, (int, float)) and factor == 1 else tensor * factor


def _is_zero(value: Value) -> bool:
    return isinstance(value, (int, float)) and value == 0


_Rule = Callable[
    [OptimizerConfig, torch.Tensor, torch.Tensor, State, Hypers], tuple[torch.Tensor, State]
]
_RULES: dict[OptimizerKind, _Rule] = {
    OptimizerKind.SGD1: _sgd,
    OptimizerKind.SGD2: _sgd,
    OptimizerKind.ADAM: _adam,
    OptimizerKind.ADAMW: _adam,
    OptimizerKind.ADAMW_NO_BIAS: _adam,
    OptimizerKind.RMSPROP: _rmsprop,
    OptimizerKind.RMSPROP_CENTERED: _rmsprop,
    OptimizerKind.LAMB: _lamb,
    OptimizerKind.LAMB_NO_BIAS: _lamb,
}

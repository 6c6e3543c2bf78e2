"""The update rules, each as one function of plain PyTorch.

The arguments of a rule are a weight `w`, its gradient `g` (reduced, without loss scaling), its
state and the hyper-parameters, all float32. It returns the new weight and state. A rule changes
nothing in place, reads no shape, and has no control flow on values, so that one recording serves
every parameter. A constant hyper-parameter is a float. A hyper-parameter that may change is a 0-d
float64 tensor, and so are the scalars computed from it.

SGD, Adam, AdamW and RMSprop have the operations of torch.optim's single-tensor code in the same
order, so that the results are equal bit for bit. SGD deliberately differs as PopART does: the
velocity starts at zero, and the dampening applies even without momentum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from poptorch_emu.update.formulas.arithmetic import (
    Value,
    add_product,
    add_quotient,
    add_scaled,
    is_zero,
    moved_towards,
    scaled,
    single,
)
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)

State = dict[str, Tensor]
Hypers = Mapping[str, Value]
_Rule = Callable[[OptimizerConfig, Tensor, Tensor, State, Hypers], tuple[Tensor, State]]


@dataclass(frozen=True)
class StateSpec:
    """One state tensor of a rule with PopART's prefix. Its shape is the weight's, unless scalar."""

    name: str
    is_scalar: bool
    dtype: torch.dtype
    initial: float


def is_elementwise(kind: OptimizerKind) -> bool:
    """Returns whether the rule may run on one flat tensor with many parameters in it."""
    return not kind.is_lamb


def ignores_zero_gradients(config: OptimizerConfig, group_index: int) -> bool:
    """Returns whether an update keeps the bits of each element whose gradient is 0.

    This holds for SGD without a velocity. It does not hold with clipping or an automatic loss
    scale, because their factors are computed at run time and may be infinite or NaN.
    """
    group = config.groups[group_index]
    return (
        config.kind.is_sgd
        and not config.clips
        and config.loss_scale_rule is None
        and group.is_constant_zero("momentum")
        and group.is_constant_zero("weight_decay")
    )


def state_names(config: OptimizerConfig, group: GroupConfig) -> tuple[StateSpec, ...]:
    """Returns the state that the rule keeps for each parameter of `group`."""
    kind = config.kind
    if kind.is_sgd:
        if group.is_constant_zero("momentum"):
            return ()
        name = "Accl" if kind is OptimizerKind.SGD1 else "Accl1"
        return (StateSpec(name, False, config.velocity_type, 0.0),)
    if kind.is_rmsprop:
        initial = 1.0 if config.uses_tf_variant else 0.0
        specs = [StateSpec("Accl1", False, config.first_order_type, initial)]
        if kind is OptimizerKind.RMSPROP_CENTERED:
            specs.append(StateSpec("Accl2", False, config.second_order_type, 0.0))
        if not group.is_constant_zero("momentum"):
            specs.append(StateSpec("Accl3", False, torch.float32, 0.0))
        return tuple(specs)
    return (
        StateSpec("Accl1", False, config.first_order_type, 0.0),
        StateSpec("Accl2", False, config.second_order_type, 0.0),
        StateSpec("Step", True, torch.float32, 0.0),
    )


def update(
    config: OptimizerConfig,
    group_index: int,
    weight: Tensor,
    gradient: Tensor,
    state: State,
    hyper: Hypers,
) -> tuple[Tensor, State]:
    """Returns the weight and the state after one step.

    The rule computes in float32 and rounds once, when weight and state are stored in their types.

    Args:
        config: optimiser with the rule.
        group_index: index of the weight's group in `config`.
        weight: weight of any shape.
        gradient: gradient of the same shape, reduced over micro-batches and replicas, without loss
            scaling.
        state: state tensors by the names of `state_names`.
        hyper: hyper-parameters by name: floats, or 0-d float64 tensors for those that may change.
    """
    rule = _rule(config.kind)
    new_weight, new_state = rule(config, weight.float(), gradient.float(), _wide(state), hyper)
    return new_weight.to(weight.dtype), _stored(config, group_index, new_state)


def lamb_direction(
    config: OptimizerConfig,
    group_index: int,
    weight: Tensor,
    gradient: Tensor,
    state: State,
    hyper: Hypers,
) -> tuple[Tensor, Tensor, State]:
    """Computes the first half of LAMB's step for a shard; arguments are those of `update`.

    Returns:
        The direction, the sums of the squares of weight and direction (shape [2], float32), and
        the new state.
    """
    w = weight.float()
    direction, new_state = _lamb_direction(config, w, gradient.float(), _wide(state), hyper)
    squares = torch.stack([(w * w).sum(), (direction * direction).sum()])
    return direction, squares, _stored(config, group_index, new_state)


def lamb_step(weight: Tensor, direction: Tensor, squares: Tensor, hyper: Hypers) -> Tensor:
    """Computes the second half of LAMB's step: returns the new shard of the weight.

    Args:
        weight: shard of the weight.
        direction: direction that `lamb_direction` returned for the shard.
        squares: sums of the squares over all shards of the weight.
        hyper: hyper-parameters, with "lr" and "max_weight_norm".
    """
    norms = squares[0].sqrt(), squares[1].sqrt()
    return _lamb_step(weight.float(), direction, norms, hyper).to(weight.dtype)


def _rule(kind: OptimizerKind) -> _Rule:
    if kind.is_sgd:
        return _sgd
    if kind.is_rmsprop:
        return _rmsprop
    return _lamb if kind.is_lamb else _adam


def _wide(state: State) -> State:
    return {name: value.float() for name, value in state.items()}


def _stored(config: OptimizerConfig, group_index: int, state: State) -> State:
    """Returns each state rounded to its stored type."""
    specs = state_names(config, config.groups[group_index])
    return {spec.name: state[spec.name].to(spec.dtype) for spec in specs}


def _sgd(
    config: OptimizerConfig, w: Tensor, g: Tensor, state: State, hyper: Hypers
) -> tuple[Tensor, State]:
    damping = hyper["dampening"] - 1
    if not is_zero(hyper["weight_decay"]):
        g = add_scaled(g, w, hyper["weight_decay"])
    if not state:
        return add_scaled(w, g, hyper["lr"] * damping), {}
    ((name, velocity),) = state.items()
    velocity = add_scaled(scaled(velocity, hyper["momentum"]), g, -damping)
    direction = _sgd_direction(g, velocity, hyper)
    return add_scaled(w, direction, -hyper["lr"]), {name: velocity}


def _sgd_direction(g: Tensor, velocity: Tensor, hyper: Hypers) -> Tensor:
    """Returns the velocity, or Nesterov's look-ahead of it."""
    nesterov = hyper["nesterov"]
    if is_zero(nesterov):
        return velocity
    ahead = add_scaled(g, velocity, hyper["momentum"])
    return torch.where(nesterov != 0, ahead, velocity) if isinstance(nesterov, Tensor) else ahead


def _adam(
    config: OptimizerConfig, w: Tensor, g: Tensor, state: State, hyper: Hypers
) -> tuple[Tensor, State]:
    lr, decay = hyper["lr"], hyper["weight_decay"]
    if not is_zero(decay):
        if config.kind is OptimizerKind.ADAM:
            g = add_scaled(g, w, decay)
        else:
            w = scaled(w, 1 - lr * decay)
    moments = _moments(g, state, hyper)
    step_size = lr / _bias(moments["Step"], hyper["beta1"])
    root = _corrected_root(moments, hyper, adds_eps_first=config.uses_tf_variant)
    return add_quotient(w, moments["Accl1"], root, step_size), moments


def _lamb(
    config: OptimizerConfig, w: Tensor, g: Tensor, state: State, hyper: Hypers
) -> tuple[Tensor, State]:
    direction, moments = _lamb_direction(config, w, g, state, hyper)
    norms = torch.linalg.vector_norm(w), torch.linalg.vector_norm(direction)
    return _lamb_step(w, direction, norms, hyper), moments


def _lamb_direction(
    config: OptimizerConfig, w: Tensor, g: Tensor, state: State, hyper: Hypers
) -> tuple[Tensor, State]:
    moments = _moments(g, state, hyper)
    if config.kind is OptimizerKind.LAMB:
        mean = moments["Accl1"] / single(-_bias(moments["Step"], hyper["beta1"]))
        direction = mean / _corrected_root(moments, hyper)
    else:
        direction = moments["Accl1"] / (moments["Accl2"].sqrt() + single(hyper["eps"]))
    if not is_zero(hyper["weight_decay"]):
        direction = add_scaled(direction, w, hyper["weight_decay"])
    return direction, moments


def _lamb_step(w: Tensor, direction: Tensor, norms: tuple[Tensor, Tensor], hyper: Hypers) -> Tensor:
    step_size = -hyper["lr"] * _trust_ratio(*norms, hyper["max_weight_norm"])
    return add_scaled(w, direction, step_size)


def _rmsprop(
    config: OptimizerConfig, w: Tensor, g: Tensor, state: State, hyper: Hypers
) -> tuple[Tensor, State]:
    alpha, lr = hyper["alpha"], hyper["lr"]
    if not is_zero(hyper["weight_decay"]):
        g = add_scaled(g, w, hyper["weight_decay"])
    new = {"Accl1": add_product(scaled(state["Accl1"], alpha), g, g, 1 - alpha)}
    spread = new["Accl1"]
    if config.kind is OptimizerKind.RMSPROP_CENTERED:
        new["Accl2"] = moved_towards(state["Accl2"], g, 1 - alpha)
        spread = add_product(spread, new["Accl2"], new["Accl2"], -1.0)
    eps = single(hyper["eps"])
    denominator = (spread + eps).sqrt() if config.uses_tf_variant else spread.sqrt() + eps
    if "Accl3" not in state:
        return add_quotient(w, g, denominator, -lr), new
    remembered = scaled(state["Accl3"], hyper["momentum"])
    if config.uses_tf_variant:
        new["Accl3"] = add_quotient(remembered, g, denominator, lr)
        return w - new["Accl3"], new
    new["Accl3"] = add_quotient(remembered, g, denominator, 1.0)
    return add_scaled(w, new["Accl3"], -lr), new


def _moments(g: Tensor, state: State, hyper: Hypers) -> State:
    """Returns the running means of `g` and of its square, and the number of steps."""
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    return {
        "Accl1": moved_towards(state["Accl1"], g, 1 - beta1),
        "Accl2": add_product(scaled(state["Accl2"], beta2), g, g, 1 - beta2),
        "Step": state["Step"] + 1,
    }


def _bias(step: Tensor, beta: Value) -> Tensor:
    """Returns `beta**step - 1`, minus the correction of a running mean that started at 0."""
    return torch.pow(beta, step.double()) - 1


def _corrected_root(moments: State, hyper: Hypers, *, adds_eps_first: bool = False) -> Tensor:
    """Returns the root of the corrected second moment, plus eps before or after the correction."""
    correction = single((-_bias(moments["Step"], hyper["beta2"])).sqrt())
    root, eps = moments["Accl2"].sqrt(), single(hyper["eps"])
    return (root + eps) / correction if adds_eps_first else root / correction + eps


def _trust_ratio(weight_norm: Tensor, norm: Tensor, max_weight_norm: Value) -> Value:
    """Returns the bounded norm of the weight over the norm of the direction; 1 if either is 0."""
    if is_zero(max_weight_norm):
        return 1.0
    bounded = weight_norm.clamp(max=single(max_weight_norm))
    ratio: Tensor = bounded / norm
    return ratio.masked_fill((bounded == 0) | (norm == 0), 1.0)

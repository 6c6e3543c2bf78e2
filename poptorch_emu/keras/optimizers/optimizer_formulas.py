"""Converts optimisers of Keras to those of the device, by formula.

Keras and PyTorch share names, but not formulas. Keras's SGD applies the learning rate before the
momentum, so the device uses `1 - dampening` as the learning rate of the velocity. Keras's Adam adds
epsilon before the second moment is corrected, and its RMSprop inside the root. Keras's weight decay
is always decoupled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poptorch_emu.optim import LAMB, SGD, Adam, AdamW, RMSprop


@dataclass(frozen=True)
class Conversion:
    """An optimiser of the device that is equivalent to one of Keras.

    Attributes:
        optimizer: optimiser of the device.
        states: Keras's variables in the order of the weights, by the prefix of the device's state.
        factor: function that returns the device's state divided by Keras's, for a learning rate.
        sets_dampening: whether the learning rate is `1 - dampening`.
        has_steps: whether the device counts updates.
    """

    optimizer: torch.optim.Optimizer
    states: Mapping[str, Sequence[Any]]
    factor: Callable[[float], float] = lambda _: 1.0
    sets_dampening: bool = False
    has_steps: bool = False

    @property
    def depends_on_rate(self) -> bool:
        """Whether the values of the device's states depend on the learning rate."""
        return bool(self.states) and self.factor(1.0) != self.factor(2.0)

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of the optimiser.

        Raises:
            ValueError: the rate is 0, and Nesterov's momentum is on.
        """
        if self.depends_on_rate and rate == 0:
            raise ValueError(_NO_ZERO)
        for group in (self.optimizer.defaults, *self.optimizer.param_groups):
            if self.sets_dampening:
                group["dampening"] = 1 - rate
            else:
                group["lr"] = rate


# Attribute of our own optimiser classes that names the Keras class with the same formula.
_COUNTERPART = "counterpart"
# Limit of weight norms that stands for "no limit".
_NO_LIMIT = 65500.0
_NO_ZERO = (
    "The learning rate is 0, which SGD with nesterov=True cannot have on the device. Give a small "
    "positive one, or freeze the layers."
)
_NOT_CONVERTED = ("clipnorm", "clipvalue", "use_ema", "gradient_accumulation_steps", "amsgrad")


def convert(optimizer: Any, variables: Sequence[Any], rate: float) -> Conversion:
    """Returns the counterpart of a Keras optimiser that is built.

    Args:
        optimizer: optimiser of Keras.
        variables: weights that are trained.
        rate: learning rate.

    Raises:
        ValueError: the optimiser, or one of its settings, has no counterpart.
    """
    kind = type(optimizer)
    rule = _RULES.get(getattr(kind, _COUNTERPART, kind.__name__))
    is_known = kind.__module__.startswith("keras.") or _COUNTERPART in kind.__dict__
    if rule is None or not is_known:  # For example a subclass of the user's.
        raise ValueError(
            f"Optimizer {kind.__name__} has no counterpart on the device. Choose SGD, Adam, AdamW, "
            "Lamb or RMSprop of keras.optimizers; if Keras wrapped it in a LossScaleOptimizer, "
            "call compile(auto_scale_loss=False)."
        )
    _check_unset(optimizer, *_NOT_CONVERTED)
    for variable in variables:
        if variable.constraint is not None:
            raise ValueError(
                f"Weight {variable.path!r} has a constraint, which the device does not apply."
            )
    return rule(optimizer, variables, rate)


def _check_unset(optimizer: Any, *names: str) -> None:
    for name in names:
        if getattr(optimizer, name, None):
            raise ValueError(
                f"{name}={getattr(optimizer, name)!r} of {type(optimizer).__name__} has no "
                "counterpart on the device."
            )


def _groups(optimizer: Any, variables: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns one group of weights with decay and one without; empty groups are left out."""
    decayed = [v.value for v in variables if _decays(optimizer, v)]
    others = [v.value for v in variables if not _decays(optimizer, v)]
    groups = [
        {"params": decayed, "weight_decay": float(optimizer.weight_decay or 0)},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _decays(optimizer: Any, variable: Any) -> bool:
    return bool(optimizer.weight_decay) and bool(optimizer._use_weight_decay(variable))


def _shared(optimizer: Any) -> dict[str, Any]:
    """Returns the arguments that all optimisers take."""
    scale = optimizer.loss_scale_factor
    return {} if scale is None else {"loss_scaling": float(scale)}


def _clipping(optimizer: Any, *, loss_scaling: float = 1.0) -> dict[str, Any]:
    """Returns the limit of the gradient norm; in Keras it applies to unscaled gradients.

    Args:
        optimizer: optimiser of Keras.
        loss_scaling: scaling of the gradients whose norm the device limits; not 1 only for SGD.
    """
    limit = optimizer.global_clipnorm
    return {} if not limit else {"max_grad_norm": float(limit) * loss_scaling}


def _sgd(optimizer: Any, variables: Sequence[Any], rate: float) -> Conversion:
    shared = _shared(optimizer)
    shared |= _clipping(optimizer, loss_scaling=shared.get("loss_scaling", 1.0))
    if not optimizer.momentum:
        groups = _groups(optimizer, variables)
        return Conversion(_device_sgd(groups, lr=rate, weight_decay=0.0, **shared), {})
    _check_unset(optimizer, "weight_decay")  # Here it would be a part of the momentum.
    weights = [variable.value for variable in variables]
    momentum = float(optimizer.momentum)
    states = _states(optimizer, variables, Accl1=optimizer.momentums)
    if optimizer.nesterov:
        if rate == 0:
            raise ValueError(_NO_ZERO)
        nesterov = _device_sgd(weights, lr=rate, momentum=momentum, nesterov=True, **shared)
        return Conversion(nesterov, states, factor=lambda rate: -1 / rate)
    plain = _device_sgd(weights, lr=1.0, momentum=momentum, dampening=1 - rate, **shared)
    return Conversion(plain, states, factor=lambda _: -1.0, sets_dampening=True)


def _device_sgd(params: Any, **settings: Any) -> SGD:
    """Returns an SGD that does not warn of differences from PyTorch, which Keras has as well."""
    made = SGD(params, **settings)
    made.use_tf_variant = True  # type: ignore[attr-defined]
    return made


def _adam(optimizer: Any, variables: Sequence[Any], rate: float) -> Conversion:
    kind: Any = AdamW if optimizer.weight_decay else Adam
    counterpart = kind(
        _groups(optimizer, variables),
        lr=rate,
        betas=(float(optimizer.beta_1), float(optimizer.beta_2)),
        eps=float(optimizer.epsilon),
        **_shared(optimizer),
        **_clipping(optimizer),
    )
    counterpart.use_tf_variant = True
    return Conversion(counterpart, _moments(optimizer, variables), has_steps=True)


def _rmsprop(optimizer: Any, variables: Sequence[Any], rate: float) -> Conversion:
    _check_unset(optimizer, "weight_decay", "global_clipnorm")
    momentum: dict[str, Any] = {"momentum": float(optimizer.momentum)} if optimizer.momentum else {}
    counterpart = RMSprop(
        [variable.value for variable in variables],
        lr=rate,
        alpha=float(optimizer.rho),
        eps=float(optimizer.epsilon),
        centered=bool(optimizer.centered),
        use_tf_variant=True,
        **momentum,
        **_shared(optimizer),
    )
    lists = {"Accl1": optimizer._velocities}
    if optimizer.centered:
        lists["Accl2"] = optimizer._average_gradients
    if optimizer.momentum:
        lists["Accl3"] = optimizer._momentums
    return Conversion(counterpart, _states(optimizer, variables, **lists))


def _lamb(optimizer: Any, variables: Sequence[Any], rate: float) -> Conversion:
    _check_unset(optimizer, "weight_decay", "global_clipnorm")
    decay_of = getattr(optimizer, "decay_of", lambda variable: 0.0)
    by_decay: dict[float, list[Any]] = {}
    for variable in variables:
        by_decay.setdefault(decay_of(variable), []).append(variable.value)
    limit = getattr(optimizer, "weight_norm_clip", None)
    counterpart = LAMB(
        [{"params": values, "weight_decay": decay} for decay, values in by_decay.items()],
        lr=rate,
        betas=(float(optimizer.beta_1), float(optimizer.beta_2)),
        eps=float(optimizer.epsilon),
        bias_correction=bool(getattr(optimizer, "debiasing", True)),
        max_weight_norm=_NO_LIMIT if limit is None else float(limit),
        **_shared(optimizer),
    )
    states = _moments(optimizer, variables)
    return Conversion(counterpart, states, has_steps=counterpart.bias_correction)


def _states(
    optimizer: Any, variables: Sequence[Any], **held: Sequence[Any]
) -> dict[str, list[Any]]:
    """Returns the optimiser's variables for some weights, by the prefixes of the device."""
    numbers = [optimizer._get_variable_index(variable) for variable in variables]
    return {prefix: [values[number] for number in numbers] for prefix, values in held.items()}


def _moments(optimizer: Any, variables: Sequence[Any]) -> dict[str, list[Any]]:
    first, second = optimizer._momentums, optimizer._velocities
    return _states(optimizer, variables, Accl1=first, Accl2=second)


# Rules by class name, because Keras creates subclasses on its torch backend.
_RULES = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "Lamb": _lamb,
    "LAMB": _lamb,
    "RMSprop": _rmsprop,
}

"""What programs of Keras 2 write of optimisers, where Keras 3 has a counterpart."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

_OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam",
    "RMSprop", "SGD",
)  # fmt: skip
_UNSCALED_BY_PROGRAM = "_poptorch_unscaled_by_program"


def install() -> None:
    """Makes Keras take it."""
    legacy: Any = importlib.import_module("keras._tf_keras.keras").optimizers.legacy
    for optimizer in _OPTIMIZERS:
        kind = getattr(keras.optimizers, optimizer)
        kind.__init__ = _with_old_arguments(kind.__init__)
        setattr(legacy, optimizer, kind)
    base: Any = keras.optimizers.Optimizer
    base.lr = property(
        lambda optimizer: optimizer.learning_rate,
        lambda optimizer, rate: setattr(optimizer, "learning_rate", rate),
    )
    base.get_scaled_loss = _scaled_loss
    base.get_unscaled_gradients = _unscaled_gradients
    base.get_slot = base.get_weights = _refused_state
    keras.optimizers.LossScaleOptimizer.__new__ = _new_loss_scale_optimizer


def is_unscaled_by_program(optimizer: Any) -> bool:
    """Returns whether the program itself divides gradients of a loss that it has scaled.

    So it is with the `LossScaleOptimizer` of Keras 2. In Keras 3 the optimiser divides.
    """
    return _UNSCALED_BY_PROGRAM in vars(optimizer)


def _with_old_arguments(build: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of an optimiser that takes arguments of Keras 2, too."""

    @functools.wraps(build)
    def build_by_old_names(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            kwargs["learning_rate"] = kwargs.pop("lr")
        name = type(optimizer).__name__
        if kwargs.get("decay") is not None and kwargs.pop("decay"):
            raise ValueError(
                f"{name}(decay=...) has no meaning in Keras 3, which would ignore it. Pass "
                f"{name}(keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay))."
            )
        if kwargs.get("gradient_transformers") is not None:
            raise ValueError(
                f"{name}(gradient_transformers=...) is not taken by Keras 3. Use clipnorm or "
                "global_clipnorm, or change gradients in a loop that IPUStrategy.run runs."
            )
        kwargs.pop("gradient_transformers", None)
        build(optimizer, *args, **kwargs)

    return build_by_old_names


def _new_loss_scale_optimizer(
    kind: Any,
    inner_optimizer: Any = None,
    initial_scale: float = 2.0**15,
    *args: Any,
    dynamic: bool = True,
    **kwargs: Any,
) -> Any:
    """Returns the inner optimiser with the scale, if that is never changed."""
    if dynamic:
        return object.__new__(kind)
    inner_optimizer.loss_scale_factor = float(initial_scale)
    vars(inner_optimizer)[_UNSCALED_BY_PROGRAM] = True
    return inner_optimizer


def _scaled_loss(optimizer: Any, loss: Any) -> Any:
    return optimizer.scale_loss(loss)


def _unscaled_gradients(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """Returns gradients of a loss that is not scaled, if the optimiser itself does not divide."""
    scale = optimizer.loss_scale_factor
    if scale is None or not is_unscaled_by_program(optimizer):
        return list(grads)
    return [None if each is None else each / scale for each in grads]


def _refused_state(optimizer: Any, *args: Any) -> Any:
    raise AttributeError(
        f"{type(optimizer).__name__} has no get_slot and get_weights in Keras 3. Its state is "
        "optimizer.variables, in the order of the trained weights."
    )

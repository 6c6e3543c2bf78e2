"""Arguments and methods of Keras 2's optimisers that have a counterpart in Keras 3."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from poptorch_emu.keras.optimizers.wrapped_optimizers import change, settings_of

_OPTIMIZERS = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam",
    "RMSprop", "SGD",
)  # fmt: skip
# Attributes in Keras 2 of an optimiser whose loss scale is fixed.
_OF_FIXED_SCALE: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda optimizer: False,
    "initial_scale": lambda optimizer: optimizer.loss_scale_factor,
    "inner_optimizer": lambda optimizer: optimizer,
    "loss_scale": lambda optimizer: optimizer.loss_scale_factor,
}


def install() -> None:
    """Makes Keras accept these arguments and methods."""
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
    # Not as properties, because Keras leaves attributes with names of properties out of its files.
    base.__getattr__ = _of_fixed_scale
    scaling: Any = keras.optimizers.LossScaleOptimizer
    scaling.__new__ = _new_loss_scale_optimizer
    scaling.__init__ = _with_scaling_arguments(scaling.__init__)


def with_loss_scale(optimizer: Any, loss_scale: float | str = "dynamic") -> Any:
    """Returns the optimiser of `mixed_precision.experimental.LossScaleOptimizer`."""
    kind: Any = keras.optimizers.LossScaleOptimizer
    is_dynamic = loss_scale == "dynamic"
    return kind(optimizer, is_dynamic, None if is_dynamic else float(loss_scale))


def is_unscaled_by_program(optimizer: Any) -> bool:
    """Returns whether the program itself divides the gradients by the loss scale."""
    return settings_of(optimizer).is_unscaled_by_program


def _with_old_arguments(build: Callable[..., None]) -> Callable[..., None]:
    """Returns a constructor of an optimiser that also accepts arguments of Keras 2."""

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


def _new_loss_scale_optimizer(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns the inner optimiser with its loss scale, if that scale is fixed.

    Raises:
        ValueError: the scale is fixed, but not given.
    """
    given = _scaling_arguments(*args, **kwargs)
    if given.get("dynamic", True):
        return object.__new__(kind)
    if given.get("initial_scale") is None:
        raise ValueError(
            "LossScaleOptimizer(dynamic=False) has no scale. Pass initial_scale=n, such as 2 ** 10."
        )
    given["inner_optimizer"].loss_scale_factor = float(given["initial_scale"])
    return change(given["inner_optimizer"], is_unscaled_by_program=True)


def _with_scaling_arguments(build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(build)
    def build_by_old_names(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        given = _scaling_arguments(*args, **kwargs)
        build(optimizer, **{name: value for name, value in given.items() if value is not None})

    return build_by_old_names


def _scaling_arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns the arguments of a `LossScaleOptimizer` by name.

    The second positional argument is a bool, `dynamic`, in Keras 2, and the scale in Keras 3.

    Raises:
        TypeError: there are too many arguments.
    """
    names = ["inner_optimizer", "initial_scale", "dynamic_growth_steps", "name"]
    if len(args) > 1 and isinstance(args[1], bool):
        names.insert(1, "dynamic")
    if len(args) > len(names):
        raise TypeError(f"LossScaleOptimizer takes {', '.join(names)}, but got {len(args)} values.")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _of_fixed_scale(optimizer: Any, name: str) -> Any:
    if name in _OF_FIXED_SCALE and is_unscaled_by_program(optimizer):
        return _OF_FIXED_SCALE[name](optimizer)
    raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute {name!r}")


def _scaled_loss(optimizer: Any, loss: Any) -> Any:
    return optimizer.scale_loss(loss)


def _unscaled_gradients(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """Returns unscaled gradients: divided here, unless the optimiser divides them itself."""
    scale = optimizer.loss_scale_factor
    if scale is None or not is_unscaled_by_program(optimizer):
        return list(grads)
    return [None if each is None else each / scale for each in grads]


def _refused_state(optimizer: Any, *args: Any) -> Any:
    raise AttributeError(
        f"{type(optimizer).__name__} has no get_slot and get_weights in Keras 3. Its state is "
        "optimizer.variables, in the order of the trained weights."
    )

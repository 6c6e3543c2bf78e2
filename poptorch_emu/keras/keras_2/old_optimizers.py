"""Arguments and methods of Keras 2's optimisers that have a counterpart in Keras 3."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from poptorch_emu.keras.optimizers.wrapped_optimizers import change, settings_of
from poptorch_emu.keras.replacement import replace_functions

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
        replace_functions(kind, __init__=_build)
        setattr(legacy, optimizer, kind)
    base: Any = keras.optimizers.Optimizer
    base.lr = property(
        lambda optimizer: optimizer.learning_rate,
        lambda optimizer, rate: setattr(optimizer, "learning_rate", rate),
    )
    base.get_scaled_loss = lambda optimizer, loss: optimizer.scale_loss(loss)
    base.get_unscaled_gradients = _unscaled_gradients
    base.get_slot = base.get_weights = _refused_state
    # Not as properties, because Keras leaves attributes with names of properties out of its files.
    base.__getattr__ = _of_fixed_scale
    scaling: Any = keras.optimizers.LossScaleOptimizer
    scaling.__new__ = _new_loss_scale_optimizer
    replace_functions(scaling, __init__=_build_scaling)


def with_loss_scale(optimizer: Any, loss_scale: float | str = "dynamic") -> Any:
    """Returns the optimiser of `mixed_precision.experimental.LossScaleOptimizer`."""
    kind: Any = keras.optimizers.LossScaleOptimizer
    is_dynamic = loss_scale == "dynamic"
    return kind(optimizer, is_dynamic, None if is_dynamic else float(loss_scale))


def _build(build: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """Builds an optimiser, also from arguments of Keras 2."""
    if "lr" in kwargs:
        kwargs["learning_rate"] = kwargs.pop("lr")
    name = type(optimizer).__name__
    if kwargs.get("decay") is not None and kwargs.pop("decay"):
        raise ValueError(
            f"{name}(decay=...) has no meaning in Keras 3, which would ignore it. Pass "
            f"{name}(keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay))."
        )
    if kwargs.pop("gradient_transformers", None) is not None:
        raise ValueError(
            f"{name}(gradient_transformers=...) is not taken by Keras 3. Use clipnorm or "
            "global_clipnorm, or change gradients in a loop that IPUStrategy.run runs."
        )
    build(optimizer, *args, **kwargs)


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


def _build_scaling(build: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    given = _scaling_arguments(*args, **kwargs)
    build(optimizer, **{name: value for name, value in given.items() if value is not None})


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
    if name in _OF_FIXED_SCALE and settings_of(optimizer).is_unscaled_by_program:
        return _OF_FIXED_SCALE[name](optimizer)
    raise AttributeError(f"{type(optimizer).__name__!r} object has no attribute {name!r}")


def _unscaled_gradients(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """Returns unscaled gradients: divided here, unless the optimiser divides them itself."""
    scale = optimizer.loss_scale_factor
    if scale is None or not settings_of(optimizer).is_unscaled_by_program:
        return list(grads)
    return [None if each is None else each / scale for each in grads]


def _refused_state(optimizer: Any, *args: Any) -> Any:
    raise AttributeError(
        f"{type(optimizer).__name__} has no get_slot and get_weights in Keras 3. Its state is "
        "optimizer.variables, in the order of the trained weights."
    )

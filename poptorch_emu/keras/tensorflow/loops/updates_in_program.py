"""Updates of Keras's optimisers as operations of a program, in their order.

A training program ends with one update. If a function reads weights after their update, updates
twice, or has an optimiser without a counterpart on the device, Keras's own formula runs instead.
"""

from __future__ import annotations

from typing import Any

import keras
import torch

from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Update
from poptorch_emu.keras.keras_2.old_optimizers import is_unscaled_by_program
from poptorch_emu.keras.optimizers.optimizer_formulas import convert
from poptorch_emu.keras.optimizers.wrapped_optimizers import settings_of
from poptorch_emu.trace.pytorch.patches import patched


def has_counterpart(update: Update) -> bool:
    """Returns whether a training program can end with an update."""
    try:
        convert(update.optimizer, update.variables, 0.5)
    except ValueError:
        return False
    return True


def apply(update: Update, replicas: int) -> None:
    """Runs the formula of an optimiser with the sum of the gradients of all replicas.

    Raises:
        Error: the optimiser accumulates gradients, or decides by values.
    """
    optimizer = update.optimizer
    _check(optimizer)
    scale = optimizer.loss_scale_factor
    factor = scale if scale is not None and is_unscaled_by_program(optimizer) else 1
    if settings_of(optimizer).is_mean_over_replicas:
        factor = factor / replicas
    gradients = [_summed(each.detach(), replicas) * factor for each in update.gradients]
    # Keras's methods for PyTorch change weights in place, so the methods for all backends are used.
    plain = {
        name: _of_any_backend(type(optimizer), name).__get__(optimizer)
        for name in ("_backend_update_step", "_apply_weight_decay")
    }
    with torch.no_grad(), patched(optimizer, **plain):
        _original_apply(optimizer, gradients, update.variables)


_original_apply: Any = keras.optimizers.Optimizer.apply


def _of_any_backend(kind: type, name: str) -> Any:
    """Returns a method of an optimiser without Keras's changes for PyTorch."""
    for each in kind.__mro__:
        if name in vars(each) and not each.__module__.startswith("keras.src.backend.torch"):
            return vars(each)[name]
    raise AssertionError(f"{kind.__name__} has no {name}.")


def _check(optimizer: Any) -> None:
    asked = settings_of(optimizer).accumulation or optimizer.gradient_accumulation_steps
    reason = ""
    if asked and asked > 1:
        reason = f"accumulates {asked} gradients, which takes a function with one update"
    elif getattr(optimizer, "ema_overwrite_frequency", None):
        reason = "has ema_overwrite_frequency, which depends on how many updates there were"
    elif isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        reason = "looks for gradients that are not finite before it updates"
    if reason:
        raise compiler_error(
            f"Optimizer {optimizer.name!r} {reason}. In a function that updates more than once in "
            "an iteration, or reads weights after their update, use a plain optimizer of Keras."
        )


def _summed(gradient: torch.Tensor, replicas: int) -> torch.Tensor:
    if replicas == 1:
        return gradient
    return collectives.all_reduce_cross_replica_sum(gradient, replicas)

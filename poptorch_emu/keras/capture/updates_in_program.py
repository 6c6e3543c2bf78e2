"""Updates of Keras's optimisers as operations of a program, in their order.

A training program ends with one update. If a function reads weights after their update, updates
twice, or has an optimiser without a counterpart on the device, Keras's own formula runs instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras
import torch
from keras.src import ops
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope

from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Update
from poptorch_emu.keras.capture.observed_variables import observed
from poptorch_emu.keras.capture.variable_scopes import ReadingScope
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
        Error: the optimiser accumulates gradients over iterations.
    """
    optimizer = update.optimizer
    settings = settings_of(optimizer)
    asked = settings.accumulation
    if asked and asked > 1:
        raise compiler_error(
            f"Optimizer {optimizer.name!r} accumulates {asked} gradients, which takes a function "
            "with one update. In a function that updates more than once in an iteration, or reads "
            "weights after their update, use a plain optimizer of Keras."
        )
    scale = optimizer.loss_scale_factor
    factor = scale if scale is not None and settings.is_unscaled_by_program else 1
    if settings.is_mean_over_replicas:
        factor = factor / replicas
    gradients = [summed(each.detach(), replicas) * factor for each in update.gradients]
    run_formula(optimizer, gradients, update.variables)


def used_variables(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    """Returns all variables that the formula of an update reads or assigns."""
    with observed() as found:
        run_formula(optimizer, [torch.zeros_like(each.value) for each in variables], variables)
    return found.used


def run_formula(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Runs Keras's formula of an update; variables are assigned in the current scope.

    Keras's methods for PyTorch change weights in place, so its methods for all backends are used.

    Raises:
        ValueError: the learning rate is a function, which would be called once for all updates, or
            the formula has other results in TensorFlow.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(patched(ops, cond=_both_branches))
        for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if each is not None:
                _check_learning_rate(each)
                _check_formula(each)
                plain = {name: _of_any_backend(each, name) for name in _OF_PYTORCH}
                stack.enter_context(patched(each, **plain))
        _of_any_backend(optimizer, "apply")(gradients, variables)


# Methods that change weights in place.
_OF_PYTORCH = (
    "_apply_weight_decay",
    "_backend_increment_gradient_accumulators",
    "_backend_reset_gradient_accumulators",
    "_backend_update_step",
)


def _of_any_backend(optimizer: Any, name: str) -> Any:
    """Returns a method of an optimiser without Keras's and our own changes for PyTorch."""
    for each in type(optimizer).__mro__:
        is_changed = each is keras.optimizers.Optimizer or each.__module__.startswith(
            "keras.src.backend.torch"
        )
        if name in vars(each) and not is_changed:
            return vars(each)[name].__get__(optimizer)
    raise AssertionError(f"{type(optimizer).__name__} has no {name}.")


def _check_learning_rate(optimizer: Any) -> None:
    rate = optimizer._learning_rate
    kinds = keras.Variable, keras.optimizers.schedules.LearningRateSchedule
    if callable(rate) and not isinstance(rate, kinds):
        raise ValueError(
            f"The learning rate of {type(optimizer).__name__} is a function, which a program of "
            "the device would call only once. Use a number, or a LearningRateSchedule of "
            "keras.optimizers.schedules."
        )


def _check_formula(optimizer: Any) -> None:
    """Refuses the one optimiser of Keras that keeps the value of a variable across a change of it.

    TensorFlow and eager PyTorch then read the new value, a program the old one.
    """
    if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
        raise ValueError(
            "ScheduleFreeAdamW has other results in TensorFlow, where its formula reads averages "
            "after they were changed. Use AdamW."
        )


def _both_branches(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Runs both branches of `keras.ops.cond`, and keeps the assignments of the chosen one."""
    scope = get_stateless_scope() if in_stateless_scope() else None
    if isinstance(scope, ReadingScope):
        return scope.choose(pred, true_fn, false_fn)
    return true_fn(), false_fn()  # Assignments are discarded, and results are not used.


def summed(gradient: torch.Tensor, replicas: int) -> torch.Tensor:
    """Returns the sum of the gradients of all replicas."""
    if replicas == 1:
        return gradient
    return collectives.all_reduce_cross_replica_sum(gradient, replicas)

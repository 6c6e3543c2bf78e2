"""What wrappers of optimisers ask for: it is noted on the optimiser inside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from poptorch_emu.keras.run_settings import (
    GradientAccumulationReductionMethod,
    ModelSettings,
    Placement,
    loss_factor,
)

_ATTRIBUTE = "_poptorch_wrapped_settings"


@dataclass(frozen=True)
class WrappedSettings:
    """What was asked of an optimiser.

    Attributes:
        accumulation: how many batches one replica adds up for an update.
        reduction: of their gradients.
        placement: of its state.
        is_mean_over_replicas: whether the gradients of replicas are averaged, not added.
    """

    accumulation: int = 1
    reduction: GradientAccumulationReductionMethod | None = None
    placement: Placement = Placement()
    is_mean_over_replicas: bool = False


def settings_of(optimizer: Any) -> WrappedSettings:
    """Returns what was asked of an optimiser."""
    found: WrappedSettings = vars(optimizer).get(_ATTRIBUTE, WrappedSettings())
    return found


def factor_of_loss(settings: ModelSettings, optimizer: Any, replicas: int) -> float:
    """Returns by what a loss is multiplied before its gradient is taken.

    The device adds over replicas, or takes means over them and the batches of an update.

    Args:
        settings: of the run, merged.
        optimizer: of Keras.
        replicas: of all processes.
    """
    factor = loss_factor(settings, replicas)
    return factor / replicas if settings_of(optimizer).is_mean_over_replicas else factor


def change(optimizer: Any, **settings: Any) -> Any:
    """Notes settings on an optimiser, and returns it."""
    vars(optimizer)[_ATTRIBUTE] = replace(settings_of(optimizer), **settings)
    return optimizer


def merged(settings: ModelSettings, optimizer: Any) -> ModelSettings:
    """Returns the settings of a model, with what was asked of its optimiser.

    Raises:
        ValueError: both say how many batches make an update.
    """
    asked = settings_of(optimizer)
    if asked.accumulation == 1:
        return settings
    if settings.accumulation not in (1, asked.accumulation):
        raise ValueError(
            f"The model accumulates {settings.accumulation} batches for an update, and its "
            f"optimizer {asked.accumulation}. Set one of them: leave the GradientAccumulation"
            "Optimizer out, or the model's option."
        )
    return replace(
        settings,
        accumulation=asked.accumulation,
        reduction=settings.reduction or asked.reduction,
        placement=asked.placement if settings.placement == Placement() else settings.placement,
    )

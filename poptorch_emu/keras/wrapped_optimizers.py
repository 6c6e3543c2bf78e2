"""What wrappers of optimisers ask for: it is noted on the optimiser inside.

It is part of the optimiser's configuration, so that copies and files keep it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras

from poptorch_emu.keras.run_settings import (
    GradientAccumulationReductionMethod,
    ModelSettings,
    Placement,
    checked_accumulation,
    checked_method,
    checked_placement,
    loss_factor,
)

_ATTRIBUTE = "_poptorch_wrapped_settings"
_IN_CONFIG = "ipu_settings"


@dataclass(frozen=True)
class WrappedSettings:
    """What was asked of an optimiser.

    Attributes:
        accumulation: how many batches one replica adds up for an update; `None` if nothing was
            said about it, its gradients and its state.
        reduction: of their gradients.
        placement: of its state.
        is_mean_over_replicas: whether the gradients of replicas are averaged, not added.
        is_unscaled_by_program: whether the program itself divides gradients of a loss that it has
            scaled. So it is with the `LossScaleOptimizer` of Keras 2; in Keras 3 the optimiser
            divides.
    """

    accumulation: int | None = None
    reduction: GradientAccumulationReductionMethod | None = None
    placement: Placement = Placement()
    is_mean_over_replicas: bool = False
    is_unscaled_by_program: bool = False

    def config(self) -> dict[str, Any]:
        """Returns what a file can hold."""
        return {**asdict(self), "reduction": self.reduction and self.reduction.name}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> WrappedSettings:
        """Returns what `config` returned, perhaps from a file that somebody has changed.

        Raises:
            TypeError: a value is of another type, or there is no such setting.
            ValueError: a value is out of range.
        """
        given = WrappedSettings(**config)
        if given.accumulation is not None:
            checked_accumulation(given.accumulation)
        method = given.reduction and checked_method(
            GradientAccumulationReductionMethod, given.reduction, "reduction"
        )
        placement = checked_placement(config.get("placement", {}))
        return replace(given, reduction=method, placement=placement)


def install() -> None:
    """Makes configurations of Keras's optimisers have it."""
    base: Any = keras.optimizers.Optimizer
    base.__init__ = _taking_settings(base.__init__)
    base.get_config = _with_settings(base.get_config)


def _taking_settings(build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(build)
    def build_with_settings(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        config = kwargs.pop(_IN_CONFIG, None)
        build(optimizer, *args, **kwargs)
        if config is not None:
            vars(optimizer)[_ATTRIBUTE] = WrappedSettings.from_config(config)

    return build_with_settings


def _with_settings(get_config: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    @functools.wraps(get_config)
    def get_config_with_settings(optimizer: Any) -> dict[str, Any]:
        settings = vars(optimizer).get(_ATTRIBUTE)
        own = {} if settings is None else {_IN_CONFIG: settings.config()}
        return {**get_config(optimizer), **own}

    return get_config_with_settings


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
    if asked.accumulation is None:
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

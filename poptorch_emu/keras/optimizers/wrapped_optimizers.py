"""Settings that wrappers of optimisers request, stored on the inner optimiser.

The settings are part of the optimiser's configuration, so that copies and files keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras

from poptorch_emu.keras.replacement import replace_functions
from poptorch_emu.keras.settings.run_settings import (
    GradientAccumulationReductionMethod,
    ModelSettings,
    Placement,
    checked_accumulation,
    checked_method,
    checked_placement,
)

_ATTRIBUTE = "_poptorch_wrapped_settings"
_IN_CONFIG = "ipu_settings"


@dataclass(frozen=True)
class WrappedSettings:
    """The settings requested for an optimiser.

    Attributes:
        accumulation: number of batches that one replica accumulates for an update; `None` if
            accumulation, reduction and placement were not requested.
        reduction: reduction of the gradients of these batches.
        placement: locations of the optimiser's state.
        is_mean_over_replicas: whether the gradients of replicas are averaged instead of added.
        is_unscaled_by_program: whether the program itself divides the gradients by the loss scale,
            as with Keras 2's `LossScaleOptimizer`. In Keras 3 the optimiser divides them.
    """

    accumulation: int | None = None
    reduction: GradientAccumulationReductionMethod | None = None
    placement: Placement = Placement()
    is_mean_over_replicas: bool = False
    is_unscaled_by_program: bool = False

    def config(self) -> dict[str, Any]:
        """Returns the settings as values that a file can hold."""
        return {**asdict(self), "reduction": self.reduction and self.reduction.name}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> WrappedSettings:
        """Returns settings from the result of `config`, whose file may have been edited.

        Raises:
            TypeError: a value has a wrong type, or a setting does not exist.
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
    """Makes configurations of Keras's optimisers contain the settings."""
    replace_functions(keras.optimizers.Optimizer, __init__=_build, get_config=_get_config)


def _build(build: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    config = kwargs.pop(_IN_CONFIG, None)
    build(optimizer, *args, **kwargs)
    if config is not None:
        vars(optimizer)[_ATTRIBUTE] = WrappedSettings.from_config(config)


def _get_config(get_config: Callable[[Any], dict[str, Any]], optimizer: Any) -> dict[str, Any]:
    settings = vars(optimizer).get(_ATTRIBUTE)
    own = {} if settings is None else {_IN_CONFIG: settings.config()}
    return {**get_config(optimizer), **own}


def settings_of(optimizer: Any) -> WrappedSettings:
    """Returns the settings requested for an optimiser."""
    found: WrappedSettings = vars(optimizer).get(_ATTRIBUTE, WrappedSettings())
    return found


def factor_of_loss(settings: ModelSettings, optimizer: Any, replicas: int) -> float:
    """Returns the factor of the loss before its gradient is computed.

    The device adds gradients over replicas, or averages them over replicas and batches of an
    update. Since replicas are always added, the factor then restores their sum.

    Args:
        settings: merged settings of the run.
        optimizer: optimiser of Keras.
        replicas: number of replicas in all processes.
    """
    factor = replicas if settings.is_mean else 1
    return factor / replicas if settings_of(optimizer).is_mean_over_replicas else factor


def change(optimizer: Any, **settings: Any) -> Any:
    """Changes the settings requested for an optimiser, and returns the optimiser."""
    vars(optimizer)[_ATTRIBUTE] = replace(settings_of(optimizer), **settings)
    return optimizer


def merged(settings: ModelSettings, optimizer: Any) -> ModelSettings:
    """Returns the settings of a model, merged with those requested for its optimiser.

    Raises:
        ValueError: model and optimiser have different numbers of batches for an update.
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

"""What options and an optimiser have to say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.enums import MeanReductionStrategy
from poptorch_emu.options.options import Options


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimiser reads of the options.

    Attributes:
        backend: options of the backend by name, those of automatic loss scaling among them.
        is_relaxed: whether unexpected attributes are no reason for a warning.
    """

    backend: Mapping[str, Any]
    is_relaxed: bool


def optimizer_settings(options: Options) -> OptimizerSettings:
    """Returns what `options` say to an optimiser."""
    return OptimizerSettings(options._Popart.options, options._relax_optimizer_checks)


def has_running_mean(options: Options) -> bool:
    """Returns whether means of gradients are taken while they accumulate, where any are."""
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    return bool(strategy is MeanReductionStrategy.Running)


def with_running_mean(options: Options) -> Options:
    """Returns frozen options like these with such a mean; `options` stay as they are."""
    if has_running_mean(options):
        return options
    changed = options.clone()
    changed.Training.setMeanAccumulationAndReplicationReductionStrategy(
        MeanReductionStrategy.Running
    )
    changed._freeze()
    return changed

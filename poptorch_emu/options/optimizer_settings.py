"""Values that optimisers read from the options, and options that optimisers require."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.enums import MeanReductionStrategy
from poptorch_emu.options.options import Options


@dataclass(frozen=True)
class OptimizerSettings:
    """Options that an optimiser reads.

    Attributes:
        backend: options of the backend by name, such as those of automatic loss scaling.
        is_relaxed: whether unexpected attributes cause no warning.
    """

    backend: Mapping[str, Any]
    is_relaxed: bool


def optimizer_settings(options: Options) -> OptimizerSettings:
    """Returns the part of `options` that an optimiser reads."""
    return OptimizerSettings(options._Popart.options, options._relax_optimizer_checks)


def has_running_mean(options: Options) -> bool:
    """Returns whether means of gradients are updated during accumulation, not divided at its
    end."""
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    return bool(strategy is MeanReductionStrategy.Running)


def with_running_mean(options: Options) -> Options:
    """Returns a frozen copy of `options` with a running mean; `options` itself is not changed."""
    if has_running_mean(options):
        return options
    changed = options.clone()
    changed.Training.setMeanAccumulationAndReplicationReductionStrategy(
        MeanReductionStrategy.Running
    )
    changed._freeze()
    return changed

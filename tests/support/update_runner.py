"""Runs an update rule repeatedly on tensors, as the engine does."""

from __future__ import annotations

import torch

from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)
from poptorch_emu.update.formulas.rules import state_names, update


def make_config(
    kind: OptimizerKind, hypers: dict[str, float], is_constant: bool = True, **settings
) -> OptimizerConfig:
    """Returns a configuration with one group."""
    group = GroupConfig(
        tuple((name, Hyper(float(value), is_constant)) for name, value in sorted(hypers.items()))
    )
    return OptimizerConfig(kind, (group,), (0,), **settings)


def initial_state(config: OptimizerConfig, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        spec.name: torch.full(
            () if spec.is_scalar else weight.shape, spec.initial, dtype=spec.dtype
        )
        for spec in state_names(config, config.groups[0])
    }


def hyper_values(config: OptimizerConfig) -> dict[str, float | torch.Tensor]:
    """Returns a rule's arguments: numbers for constants, 0-d float64 tensors for variables."""
    return {
        name: hyper.value if hyper.is_constant else torch.tensor(hyper.value, dtype=torch.float64)
        for name, hyper in config.groups[0].hypers
    }


def run_updates(
    config: OptimizerConfig, weight: torch.Tensor, gradients: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns weight and state after one update for each gradient."""
    state = initial_state(config, weight)
    hyper = hyper_values(config)
    for gradient in gradients:
        weight, state = update(config, 0, weight, gradient, state, hyper)
    return weight, state

"""Warnings where the device, as PopTorch's, does something else than PyTorch would."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.log import logger
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig, OptimizerKind


@cache
def warn_once(message: str) -> None:
    """Logs a warning once in a process."""
    logger.warning("%s", message)


def warn_of_differences(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
    """Says what PyTorch would compute differently with this optimiser."""
    name = type(optimizer).__name__
    if any(group.get("maximize") for group in optimizer.param_groups):
        warn_once(
            f"maximize=True of {name} is ignored on the device, which minimises the loss. Negate "
            "the loss instead."
        )
    if config.kind in (OptimizerKind.SGD1, OptimizerKind.SGD2):
        is_meant = config.uses_tf_variant  # Keras's learning rate is a dampening here.
        if not is_meant and any(group["dampening"].value for group in config.groups[1:]):
            warn_once(
                f"The velocity of {name} starts at zero on the device, so that dampening also "
                "reduces the first step; in PyTorch the first velocity is the whole gradient."
            )
    if config.kind is OptimizerKind.ADAMW_NO_BIAS:
        warn_once(f"bias_correction=False of {name} has no effect: the moments are corrected.")


def warn_of_defaults(
    config: OptimizerConfig,
    named_parameters: Mapping[str, torch.nn.Parameter],
    executable: Executable,
) -> None:
    """Says what the program trains although it is in no group of the optimiser."""
    left_out = [
        name
        for (name, parameter), group in zip(
            named_parameters.items(), config.group_of_parameter, strict=True
        )
        if group == 0 and parameter.requires_grad
    ]
    if left_out:  # A graph from the cache has to be rebuilt, so it is asked only then.
        sinks = executable.graph.sinks
        trained = {sink.name for sink in sinks if sink.kind is SinkKind.GRADIENT}
        left_out = [name for name in left_out if name in trained]
    if left_out:
        warn_once(
            f"{len(left_out)} parameters are in no group of the optimizer, the first is "
            f"{left_out[0]!r}: the device updates them with the optimizer's default values, where "
            "PyTorch would not change them. Call requires_grad_(False) on those to be kept."
        )

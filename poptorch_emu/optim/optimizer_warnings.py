"""Warnings about differences between the device and PyTorch, or the user's probable intention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from poptorch_emu.compile.executable import Executable
from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.log import logger
from poptorch_emu.optim.optimizer_base import Optimizer
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig, OptimizerKind

_STRUCTURE = {"defaults", "state", "param_groups", "variable_attrs"}
_BOOKKEEPING = {"ipu_state_is_dirty", "host_state_is_dirty", "_state_dict", "state_dict"}
# Attributes and keys that PyTorch's learning rate schedulers add to an optimiser and its groups.
_OF_SCHEDULERS = {"step", "_opt_called"}
_OF_SCHEDULERS_IN_GROUPS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}


@cache
def warn_once(message: str) -> None:
    """Logs a warning once in each process."""
    logger.warning("%s", message)


def warn_of_differences(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
    """Warns about results that differ from PyTorch's with this optimiser."""
    name = type(optimizer).__name__
    if any(group.get("maximize") for group in optimizer.param_groups):
        warn_once(
            f"maximize=True of {name} is ignored on the device, which minimises the loss. Negate "
            "the loss instead."
        )
    # Excludes Keras, where 1 - dampening is the learning rate and the norm's limit is converted.
    is_sgd = config.kind.is_sgd and not config.uses_tf_variant
    limit, scaling = config.max_grad_norm, config.loss_scaling.value
    if is_sgd and config.clips and scaling != 1.0:
        warn_once(
            f"max_grad_norm={limit:g} of {name} is the limit of gradients that loss_scaling="
            f"{scaling:g} has multiplied, so that the gradients themselves are limited to "
            f"{limit / scaling:g}. To limit them to {limit:g}, pass "
            f"max_grad_norm={limit * scaling:g}. Other optimizers limit unscaled gradients."
        )
    if is_sgd and any(group["dampening"].value for group in config.groups[1:]):
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
    """Warns about parameters that the program trains although no group contains them."""
    left_out = [
        name
        for (name, parameter), group in zip(
            named_parameters.items(), config.group_of_parameter, strict=True
        )
        if group == 0 and parameter.requires_grad
    ]
    if left_out:  # Tested first, because rebuilding the graph of a cached program takes time.
        sinks = executable.graph.sinks
        trained = {sink.name for sink in sinks if sink.kind is SinkKind.GRADIENT}
        left_out = [name for name in left_out if name in trained]
    if left_out:
        warn_once(
            f"{len(left_out)} parameters are in no group of the optimizer, the first is "
            f"{left_out[0]!r}: the device updates them with the optimizer's default values, where "
            "PyTorch would not change them. Call requires_grad_(False) on those to be kept."
        )


def warn_of_subclass(optimizer: torch.optim.Optimizer) -> None:
    """Warns that the code of a subclass does not run on the device."""
    kind = type(optimizer)
    bases = {torch.optim.Optimizer, Optimizer}
    if kind is not torch.optim.AdamW and bases.isdisjoint(kind.__bases__):
        logger.warning(
            "Optimizer `%s` subclassed from classes in poptorch.optim or torch.optim. Poptorch "
            "does not run Python optimizer code directly: the device has its own update rules, so "
            "methods that the subclass overrides probably have no effect.",
            kind.__name__,
        )


def warn_of_steps(
    optimizer: torch.optim.Optimizer, is_attached: Callable[[], bool]
) -> Callable[[], None]:
    """Warns once about a step on the host with an attached device; returns a function to stop."""
    said: list[bool] = []

    def before_step(*_: Any) -> None:
        if is_attached() and not said:
            said.append(True)
            logger.warning(
                "optimizer.step() was called, but each call of the training model updates the "
                "weights on the device: a step on the host does not reach it. Remove the call, and "
                "zero_grad() and backward() with it; %s",
                Topic.OPTIMIZER_STEP,
            )

    return optimizer.register_step_pre_hook(before_step).remove


class AttributeTracker:
    """Compares the attributes of later optimisers with those of a model's first one."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, is_relaxed: bool = False) -> None:
        """Stores all attributes of `optimizer` as expected ones.

        Args:
            optimizer: first optimiser of a model.
            is_relaxed: whether to report at level DEBUG instead of WARNING.
        """
        self._level = logging.DEBUG if is_relaxed else logging.WARNING
        self._defaults = set(optimizer.defaults)
        self._groups = {name for group in optimizer.param_groups for name in group}
        self._groups |= _OF_SCHEDULERS_IN_GROUPS
        self._object = set(vars(optimizer)) | _STRUCTURE | _BOOKKEEPING | _OF_SCHEDULERS
        self._reported: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, kind: OptimizerKind) -> None:
        """Reports the attributes that `optimizer` has beyond the expected, each message once."""
        unexpected = {
            "default group variable": set(optimizer.defaults) - self._defaults,
            "optimizer attribute": set(vars(optimizer)) - self._object,
        }
        for index, group in enumerate(optimizer.param_groups):
            unexpected[f"group {index} attribute"] = set(group) - self._groups
        for noun, names in unexpected.items():
            message = f"Ignoring unexpected {noun} in {kind.name} optimizer: {sorted(names)}"
            if names and message not in self._reported:
                self._reported.add(message)
                logger.log(self._level, "%s", message)

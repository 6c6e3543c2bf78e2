"""Conversions of the emulator's models to plain PyTorch, for CPUs and GPUs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch

from poptorch_emu.emulator.given_values import check_model
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.executor_contents import compiled_inputs, optimizer_states
from poptorch_emu.export.optimizer import TorchOptimizer, torch_optimizer_of
from poptorch_emu.export.pipeline import Compiled, ExportedPipeline
from poptorch_emu.optim.optimizer_conversion import optimizer_config
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig


def export_pipeline(
    executor: PoplarExecutor, *, freeze_statistics: bool = False
) -> ExportedPipeline:
    """Converts a compiled model to stages of `torch.distributed.pipelining` (exact).

    Each process of the pipeline compiles the model and takes its own stages, so all processes
    must set the same seed before they create the model. One micro-batch runs to prove that
    autograd finds the gradients that were compiled. The stages have the present weights.

    Args:
        executor: compiled model.
        freeze_statistics: whether batch norms keep their present statistics, as in evaluation;
            by default batch norms are refused.

    Raises:
        Error: the model is not compiled, or plain PyTorch computes something differently; the
            message names the line and the way out.
    """
    check_model(executor)
    executable = executor._compiled()
    model = copy.deepcopy(executor.model)
    inputs, config = compiled_inputs(executor), _optimizer_config(executor)
    if config is None:
        compiled = Compiled(executable, model, inputs, None)
    else:
        # The pipeline clips gradients, because no single stage has all of them.
        optimizer = _torch_optimizer(executor, model, replace(config, max_grad_norm=math.inf))
        compiled = Compiled(executable, model, inputs, optimizer, config.max_grad_norm)
    return ExportedPipeline(compiled, freeze_statistics=freeze_statistics)


def to_torch(
    executor: PoplarExecutor,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Returns the model with its trained weights, and its optimiser in PyTorch's form (exact).

    Both are copies in plain PyTorch, for `torch.compile` or another device. The executor's own
    objects do not change.

    Returns:
        A copy of the user's module, and an optimiser over its parameters with the executor's
        state. It is of `torch.optim`, or uses the emulator's formulas if PyTorch lacks the rule.
        The optimiser of an inference model is `None`.
        Error: the executor is not compiled, or the optimiser scales the loss.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.Linear(3, 1))
        >>> inference.compile(torch.ones(2, 3))
        >>> module, optimizer = emulator.to_torch(inference)
        >>> module, optimizer
        (Linear(in_features=3, out_features=1, bias=True), None)
    """
    check_model(executor)
    executor._compiled()
    model = copy.deepcopy(executor.model)
    config = _optimizer_config(executor)
    if config is None:
        return model, None
    return model, _torch_optimizer(executor, model, config).over(dict(model.named_parameters()))


def _optimizer_config(executor: PoplarExecutor) -> OptimizerConfig | None:
    if executor._optimizer is None:
        return None
    return optimizer_config(executor._optimizer, dict(executor.model.named_parameters()))


def _torch_optimizer(
    executor: PoplarExecutor, model: torch.nn.Module, config: OptimizerConfig
) -> TorchOptimizer:
    parameters = dict(model.named_parameters())
    return torch_optimizer_of(config, parameters, optimizer_states(executor))

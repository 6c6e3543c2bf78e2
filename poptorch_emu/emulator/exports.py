"""Ways from the emulator to plain PyTorch, on CPUs and GPUs."""

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
    """Turns a compiled model into stages of `torch.distributed.pipelining` (exact).

    Each process of the pipeline compiles the model for itself and takes its own stages; the seed
    before the model is made must be the same in all. One micro-batch is run to prove that autograd
    finds the gradients that were compiled. The weights are those of this moment.

    Args:
        executor: compiled.
        freeze_statistics: whether batch norms go on with the statistics that they have, as in
            evaluation; without it they are refused.

    Raises:
        Error: it is not compiled, or plain PyTorch does something in another way; the text names
            the line and the way out.
    """
    check_model(executor)
    executable = executor._compiled()
    model = copy.deepcopy(executor.model)
    inputs, config = compiled_inputs(executor), _optimizer_config(executor)
    if config is None:
        compiled = Compiled(executable, model, inputs, None)
    else:
        # The pipeline clips, since no stage has all gradients.
        optimizer = _torch_optimizer(executor, model, replace(config, max_grad_norm=math.inf))
        compiled = Compiled(executable, model, inputs, optimizer, config.max_grad_norm)
    return ExportedPipeline(compiled, freeze_statistics=freeze_statistics)


def to_torch(
    executor: PoplarExecutor,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Returns the model as it is trained, and its optimiser in PyTorch's form (exact).

    Both are plain PyTorch, for `torch.compile` or another device, and copies: the executor's own
    go on untouched.

    Returns:
        A copy of the user's module, and an optimiser over its parameters with the state that the
        executor's has: of `torch.optim`, or by the emulator's formulas what that does not have.
        `None` for an inference model.

    Raises:
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

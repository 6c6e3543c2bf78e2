"""The two functions that wrap a model for virtual IPUs."""

from __future__ import annotations

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.executor import wrapping
from poptorch_emu.executor.captures import uncompiled
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.optim import SGD
from poptorch_emu.options import Options, PipelinedExecution, ShardedExecution
from poptorch_emu.troubleshooting import Topic


@uncompiled
def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wraps `model` so that each call trains it on virtual IPUs (exact).

    Args:
        model: a module whose forward computes a loss.
        options: options, which this call freezes.
        optimizer: `poptorch.optim` or `torch.optim`; SGD with learning rate 0.01 by default.

    Raises:
        RuntimeError: another training wrapper holds the model.
        Error: `model` is not a traceable torch.nn.Module.
        AssertionError: the device does not support the optimiser.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = torch.nn.Linear(3, 1)
        ...
        ...     def forward(self, x, target):
        ...         y = self.linear(x)
        ...         return y, torch.nn.functional.mse_loss(y, target)
        >>> model = Model()
        >>> optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        >>> training = poptorch.trainingModel(model, poptorch.Options(), optimizer)
        >>> output, loss = training(torch.rand(4, 3), torch.rand(4, 1))
        >>> output.shape, loss.shape
        (torch.Size([4, 1]), torch.Size([]))
    """
    model = _user_module(model)
    if wrapping.is_wrapped(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call model.destroy() on "
            "the model to unwrap it before wrapping it in 'poptorch.trainingModel' again; "
            f"{Topic.ALREADY_WRAPPED}"
        )
    if optimizer is None:
        optimizer = SGD(model.parameters(), lr=0.01)
    return PoplarExecutor(wrapping.traced_copy(model), options, True, optimizer, user_model=model)


@uncompiled
def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wraps `model` so that each call runs it on virtual IPUs (exact).

    Raises:
        Error: gradient accumulation is set, or `model` is not a traceable torch.nn.Module.

    Example:
        >>> inference = poptorch.inferenceModel(torch.nn.ReLU())
        >>> inference(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    model = _user_module(model)
    options = options or Options()
    if isinstance(options, Options) and options.Training.gradient_accumulation != 1:
        hint = ""
        strategy = options._execution_strategy
        if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
            hint = (
                " Use poptorch.Options().deviceIterations to feed enough batches for pipelined "
                "execution instead."
            )
        raise make_error(
            "You must set poptorch.Options().Training.gradientAccumulation to 1 (the default) to "
            f"use poptorch.inferenceModel(), but it is "
            f"{options.Training.gradient_accumulation}.{hint} Only training accumulates; "
            f"{Topic.ACCUMULATION_IN_INFERENCE}"
        )
    own = wrapping.twin_of(model)
    traced = wrapping.traced_copy(own) if wrapping.is_wrapped(own) else own
    return PoplarExecutor(traced, options, False, user_model=own)


def _user_module(model: object) -> torch.nn.Module:
    """Returns the module to wrap. If `model` is a wrapper, that is the wrapper's module."""
    if isinstance(model, PoplarExecutor):
        return model.model
    if isinstance(model, torch.jit.ScriptModule):
        raise make_error(
            f"Invalid type: 'model' is of type {type(model)}, which cannot be traced anew. Wrap "
            f"the torch.nn.Module that it was made of; {Topic.NOT_A_MODULE}"
        )
    if not isinstance(model, torch.nn.Module):
        raise make_error(
            f"Invalid type: 'model' is of type {type(model)} (Expected torch.nn.Module). Make a "
            "function the forward of a module, and pass an instance of a class; "
            f"{Topic.NOT_A_MODULE}"
        )
    return model

"""Access of other parts of the package to the contents of an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from poptorch_emu.compile.compiler import Observe, Request
from poptorch_emu.compile.executable import Executable
from poptorch_emu.executor.executor import PoplarExecutor
from poptorch_emu.executor.own_options import options_of
from poptorch_emu.options import Options


def give_optimizer_state(executor: PoplarExecutor, state: dict[str, Any]) -> None:
    """Passes a saved state of the optimiser to a training executor, for the next device."""
    link = executor._on_device.optimizer_link
    if link is not None:
        link.take_state(state)


def optimizer_states(executor: PoplarExecutor) -> dict[str, torch.Tensor]:
    """Returns the newest state of a training executor's optimiser; empty if it never ran."""
    link = executor._on_device.optimizer_link
    saved = None if link is None else link.saved_state(executor._session)
    return {} if saved is None else saved["ipu_state"]


def compiled_inputs(executor: PoplarExecutor) -> list[torch.Tensor]:
    """Returns the input tensors of an executor's compilation."""
    arguments = executor._on_device.compilation.arguments
    return [] if arguments is None else arguments.tensors()


def has_edited_weights(executor: PoplarExecutor) -> bool:
    """Returns whether the host changed weights after they went to the executor's device."""
    return bool(executor._on_device.weights.edited())


def request_of(
    executor: PoplarExecutor,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    options: Options | None = None,
) -> Request:
    """Returns the request for a compilation of a call, without changing anything.

    Args:
        executor: executor, which need not be compiled.
        inputs: positional arguments of a call; with no arguments, those of the compilation.
        keywords: keyword arguments of the call.
        options: options that replace the executor's own.
    """
    bind = None
    if inputs or keywords:
        bind = partial(executor._args_parser.bind, inputs, dict(keywords))
    device = executor._on_device
    with device.device_lock:
        own = device.options
        if options is not None:
            own = options_of(options, device.optimizer_link)
        return device.compilation.request(device.compilation.bound(bind), own)


def observed_program(executor: PoplarExecutor) -> Callable[[Request, Observe], Executable]:
    """Returns a function that compiles an executor's model with calls of the host."""
    return executor._on_device.compilation.observed

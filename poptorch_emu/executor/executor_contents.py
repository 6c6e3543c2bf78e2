"""What other parts of the package take out of an executor, or give it."""

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
    """Gives a training executor a state of its optimiser that was saved, for the next device."""
    link = executor._on_device.optimizer_link
    if link is not None:
        link.take_state(state)


def optimizer_states(executor: PoplarExecutor) -> dict[str, torch.Tensor]:
    """Returns the newest state of a training executor's optimiser; none if it never ran."""
    link = executor._on_device.optimizer_link
    saved = None if link is None else link.saved_state(executor._session)
    return {} if saved is None else saved["ipu_state"]


def compiled_inputs(executor: PoplarExecutor) -> list[torch.Tensor]:
    """Returns the tensors of the call for which an executor was compiled."""
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
    """Returns what the compiler would be asked for a call; nothing changes.

    Args:
        executor: compiled or not.
        inputs: of a call; none for those that the model was compiled for.
        keywords: those of them that are given by name.
        options: in place of the executor's own.
    """
    bind = None
    if inputs or keywords:
        bind = partial(executor._args_parser.bind, inputs, dict(keywords))
    device = executor._on_device
    with device.device_lock.lock:
        own = device.options
        if options is not None:
            own = options_of(options, device.optimizer_link)
        return device.compilation.request(device.compilation.bound(bind), own)


def observed_program(executor: PoplarExecutor) -> Callable[[Request, Observe], Executable]:
    """Returns what makes a program of an executor's model that calls the host as it is told."""
    return executor._on_device.compilation.observed

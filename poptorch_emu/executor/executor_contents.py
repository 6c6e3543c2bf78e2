"""What other parts of the package take out of an executor, or give it."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.executor.executor import PoplarExecutor


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

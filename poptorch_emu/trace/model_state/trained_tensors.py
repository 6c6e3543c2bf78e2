"""The host tensors of trained parameters, which must not become constants of a trace.

During a trace, a fake tensor replaces each parameter in its module. Code that holds the parameter
elsewhere reads the host tensor, whose current values would never be trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.trace.model_state.module_state import HostTensor
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic


class TrainedTensors:
    """The memory of the trained parameters of one trace."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def add(self, parameter: HostTensor) -> None:
        """Adds a parameter if it is trained."""
        if parameter.value.requires_grad and parameter.value.numel():
            self._names[_memory(parameter.value)] = parameter.name

    def check(self, constant: torch.Tensor) -> None:
        """Checks that a tensor of the host may enter the graph as a constant.

        Raises:
            Error: the tensor is a trained parameter, or was computed from one.
        """
        if not self._names:
            return
        for value in _origins(constant):
            name = self._names.get(_memory(value))
            if name is not None:
                raise compiler_error(
                    f"forward reads the host's tensor of parameter {name!r} at {user_source()}, "
                    "not its stand-in on the IPU: it would be a constant, and the parameter would "
                    "not be trained there. Read it from its module in forward (as self.weight) "
                    "instead of a reference that was kept elsewhere; where it is meant to be "
                    "constant, keep a clone of it, or call requires_grad_(False) on it; "
                    f"{Topic.HOST_PARAMETER}"
                )


def _origins(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields `tensor` and the leaves that autograd computed it from."""
    yield tensor
    seen: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [before for before, _ in node.next_functions]


def _memory(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's memory, which views share; 0 if it is not on the CPU."""
    return 0 if tensor.device.type != "cpu" else tensor.untyped_storage().data_ptr()

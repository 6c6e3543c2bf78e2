"""The trained parameters' own tensors on the host, of which a trace may take no constant.

While `forward` is traced, a stand-in takes the place of each parameter in its module. Who keeps the
parameter somewhere else reads the host's tensor: its values of that moment, which nothing trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.trace.module_state import HostTensor
from poptorch_emu.trace.source_line import user_source
from poptorch_emu.troubleshooting import Topic


class TrainedTensors:
    """Knows where the trained parameters of one trace lie on the host."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def add(self, parameter: HostTensor) -> None:
        """Notes a parameter, if it is trained."""
        if parameter.value.requires_grad and parameter.value.numel():
            self._names[_memory(parameter.value)] = parameter.name

    def check(self, constant: torch.Tensor) -> None:
        """Checks that a tensor of the host may enter the graph as a constant.

        Raises:
            Error: it is a trained parameter, or was computed of one.
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
    """Returns where the memory of a tensor begins; views share it. Stand-ins have none: 0."""
    return 0 if tensor.device.type != "cpu" else tensor.untyped_storage().data_ptr()

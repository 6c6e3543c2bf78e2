"""Values of tensors that are known during a trace, in the outermost graph and in bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph
from poptorch_emu.ir.mutation import is_mutating, written_memory
from poptorch_emu.torch_versions import FakeTensor, disable_current_modes, pytree
from poptorch_emu.trace.places.recorded_scope import Scope
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.values.host_backed import HostBacked
from poptorch_emu.trace.values.known_values import changed_state, known_value, read_state


def host_value(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the value of a tensor that exists on the host, or None."""
    if isinstance(tensor, HostBacked):
        return tensor.host
    constant: torch.Tensor | None = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    return constant


# Returns the value of a node that depends on inputs, or None.
Read = Callable[[Graph, fx.Node], torch.Tensor | None]


def reads_nothing(graph: Graph, node: fx.Node) -> torch.Tensor | None:
    """Returns None, so that values that depend on inputs stay unknown."""
    return None


class KnownTensors:
    """Computes values that depend on constants only, and reads others if that is allowed.

    Attributes:
        lines_that_read: the user's line that read the value of a buffer of integers, by buffer.
    """

    def __init__(
        self,
        scopes: Sequence[Scope],
        check_constant: Callable[[torch.Tensor], None],
        read: Read = reads_nothing,
    ) -> None:
        """Looks up the tensors of `scopes`.

        Args:
            scopes: the outermost graph and the graphs of open bodies, in that order.
            check_constant: raises if a tensor of the host must not become a constant.
            read: returns values of the outermost graph that depend on inputs.
        """
        self._read = read
        self._scopes = scopes
        self._check_constant = check_constant
        self.lines_that_read: dict[str, str] = {}

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a tensor, or None if it is not known before a run."""
        value = host_value(tensor)
        if value is not None:
            self._check_constant(value)
            return value
        return self._value_in(len(self._scopes) - 1, tensor)

    def values(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Returns arguments with values in place of tensors, or None if a value is unknown."""
        leaves, spec = pytree.tree_flatten(args)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                leaves[index] = self.value(leaf)
                if leaves[index] is None:
                    return None
        values: tuple[Any, ...] = pytree.tree_unflatten(leaves, spec)
        return values

    def places(
        self, indices: Sequence[Any], to_tensor: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[Any]:
        """Returns indices with positions in place of known masks, so that the shape is static.

        Args:
            indices: indices: numbers, masks, or None for a whole dimension.
            to_tensor: returns a tensor of the trace for a constant.
        """
        found: list[Any] = []
        for index in indices:
            is_mask = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            mask = self.value(index) if is_mask else None
            if mask is None:
                found.append(index)
                continue
            with disable_current_modes():
                numbers = mask.nonzero(as_tuple=True)
            found += map(to_tensor, numbers)
        return found

    def changed_state(self, tensor: torch.Tensor) -> list[str]:
        """Returns the buffers of integers that `forward` changed before it read `tensor`."""
        found = ((scope.graph, scope.find(tensor)) for scope in reversed(self._scopes))
        graph, node = next(((g, node) for g, node in found if node is not None), (None, None))
        return [] if graph is None or node is None else changed_state(graph, node)

    def _value_in(self, depth: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a tensor in a scope or in the scopes around it."""
        scope = self._scopes[depth]
        node = scope.find(tensor)
        if node is None:
            return self._value_in(depth - 1, tensor) if depth else None
        for name in read_state(scope.graph, node):
            self.lines_that_read.setdefault(name, user_source())

        def value_of(source: fx.Node) -> torch.Tensor | None:
            captured = scope.captured_by(source) if depth else None
            if captured is None or _is_written(scope, source):
                return None
            return self._value_in(depth - 1, captured)

        value = known_value(scope.graph, node, value_of)
        return self._read(scope.graph, node) if value is None and not depth else value


def _is_written(scope: Scope, source: fx.Node) -> bool:
    """Returns whether a body changes a captured tensor, in each of its runs."""
    writers = filter(is_mutating, scope.graph.operations)
    return any(source in written_memory(writer) for writer in writers)

"""Float64 values of a graph, from the inputs and the random numbers of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, operation_of
from poptorch_emu.numbers.graph_values import is_drawn, result_number
from poptorch_emu.numbers.rounding import results_of, widened
from poptorch_emu.numbers.run import Position, Run
from poptorch_emu.numbers.run_values import FAILURES, RunValues, call_of, last_uses


class Float64Reference:
    """The float64 values of a window at one position, operation by operation.

    Operations without a float64 form, such as a loop or a call of the host, keep the run's values.
    """

    def __init__(
        self,
        graph: Graph,
        run: Run,
        numbers: Mapping[fx.Node, int],
        position: Position,
        loss_scaling: float,
    ) -> None:
        """Prepares the values at one position; the arguments are those of a `RunValues`."""
        self._graph = graph
        self._own = RunValues(graph, run, numbers, position, loss_scaling=loss_scaling)
        self._results: dict[fx.Node, list[Any] | None] = {}

    def values(self) -> Iterator[tuple[fx.Node, torch.Tensor | None]]:
        """Yields each node in order with its value; `None` if only the run's own value exists."""
        ends = last_uses(self._graph)
        for node in self._graph.fx.nodes:
            if node.op in ("placeholder", "call_function"):
                yield node, self._value(node)
            for each in ends.get(node, ()):
                self._results.pop(each, None)
                self._own.forget(each)

    def _value(self, node: fx.Node) -> Any:
        operation = operation_of(node)
        if node.op == "placeholder" or is_drawn(node) or is_drawn(operation):
            return None
        if operation not in self._results:
            self._results[operation] = self._made(operation)
        results = self._results[operation]
        return None if results is None else results[result_number(node)]

    def _argument(self, node: fx.Node) -> Any:
        value = self._value(node)
        if value is not None:
            return value
        known = self._own.value(node)
        if known is None:
            raise LookupError(node.name)
        return known.tensor

    def _made(self, operation: fx.Node) -> list[Any] | None:
        call = call_of(operation)
        if call is None:
            return None
        target, args, kwargs = call
        try:
            args, kwargs = fx.node.map_arg((args, kwargs), self._argument)
            return results_of(target, widened((args, kwargs)))
        except (*FAILURES, LookupError):
            return None

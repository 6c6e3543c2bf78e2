"""The values of one run at one position, by the nodes of our graph.

If the run has no value of its own for a node, because it ran other operations, our operation
computes the value from those that the run has, with a bound for its error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Graph, SourceKind, operation_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.numbers.float32_results import Float32Results
from poptorch_emu.numbers.graph_values import (
    DROPOUT,
    given_name,
    is_drawn,
    is_view,
    result_number,
)
from poptorch_emu.numbers.magnitudes import HALF_TYPES
from poptorch_emu.numbers.rounding import Bound, Exact, is_float, results_of
from poptorch_emu.numbers.run import FIRST, Position, Run
from poptorch_emu.torch_versions import OpOverload, pytree
from poptorch_emu.update.formulas.optimizer_config import LOSS_SCALING

aten = torch.ops.aten

# Exceptions of operators that cannot compute a result from their arguments.
FAILURES = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
# Results of an operation, and the largest error of each of their elements.
_Made = tuple[list[Any], list[Any]]


@dataclass(frozen=True)
class Known:
    """The value of a node at one position.

    Attributes:
        tensor: the run's own value, or a value computed here.
        slack: largest error of each element of a computed value; `None` for the run's own value.
    """

    tensor: torch.Tensor
    slack: torch.Tensor | None = None


class RunValues:
    """The values of one run at one position, by the nodes of our graph.

    Attributes:
        has_wide_sums: whether computed values suppose sums in float32, also in half precision.
    """

    def __init__(
        self,
        graph: Graph,
        run: Run,
        numbers: Mapping[fx.Node, int],
        position: Position,
        *,
        loss_scaling: float = 1.0,
        others: RunValues | None = None,
    ) -> None:
        """Prepares the values at one position.

        Args:
            graph: our graph.
            run: run that has the values.
            numbers: number of each node's value in `run`.
            position: (micro-batch, replica) in `run`.
            loss_scaling: factor of the loss before back-propagation.
            others: the other run, for inputs and random numbers that `run` lacks.
        """
        self._graph, self._run, self._numbers, self._position = graph, run, numbers, position
        self._loss_scaling = loss_scaling
        self._others = others
        self._given = {v.name: number for number, v in enumerate(run.values) if v.name}
        self.has_wide_sums = False
        self._results: dict[fx.Node, _Made | None] = {}

    def own(self, node: fx.Node) -> torch.Tensor | None:
        """Returns the run's own value of a node; `None` if it has none."""
        number = self._numbers.get(node)
        return None if number is None else self._run.read(number, self._position)

    def value(self, node: fx.Node) -> Known | None:
        """Returns the value of a node; `None` if it can neither be read nor computed."""
        own = self.own(node)
        if own is not None:
            return Known(own)
        if node.op == "placeholder":
            return self._source(node)
        operation = operation_of(node)
        if is_drawn(node) or is_drawn(operation):
            return None if self._others is None else self._others.value(node)
        results = self._made(operation)
        if results is None:
            return None
        number = result_number(node)
        tensors, slack = results
        return Known(tensors[number], slack[number])

    def forget(self, operation: fx.Node) -> None:
        """Drops the computed results of an operation, which nobody reads any more."""
        self._results.pop(operation, None)

    def forget_all(self) -> None:
        """Drops all computed results, because other values of the run are known now."""
        self._results.clear()

    def exact(self, operation: fx.Node) -> Expectation | None:
        """Returns the exact results for this run's inputs; `None` if they cannot be computed."""
        call = self._call(operation)
        if call is None:
            return None
        try:
            exact = Exact(call.target, call.args, call.kwargs)
        except FAILURES:
            return None
        slack = [(n, off) for n, off in enumerate(call.slack) if off is not None]
        leaves = pytree.tree_leaves((call.args, call.kwargs))
        return Expectation(exact, slack, [v.dtype for v in leaves if hasattr(v, "dtype")])

    def quick(self, operation: fx.Node) -> Float32Results | None:
        """Returns the operation in float32; `None` unless all inputs are the run's own."""
        call = self._call(operation)
        if call is None or any(off is not None for off in call.slack):
            return None
        if any(_is_wide(leaf) for leaf in pytree.tree_leaves((call.args, call.kwargs))):
            return None
        try:
            return Float32Results(call.target, call.args, call.kwargs)
        except FAILURES:
            return None

    def _call(self, operation: fx.Node) -> _Call | None:
        """Returns an operation with this run's inputs; `None` if an input is unknown."""
        call = call_of(operation)
        if call is None:
            return None
        target, own_args, own_kwargs = call
        order: list[fx.Node] = []
        fx.node.map_arg((own_args, own_kwargs), order.append)
        known = {node: value for node in order if (value := self.value(node)) is not None}
        if any(node not in known for node in order):
            return None
        args, kwargs = fx.node.map_arg((own_args, own_kwargs), lambda node: known[node].tensor)
        return _Call(target, args, kwargs, [known[node].slack for node in order])

    def _source(self, node: fx.Node) -> Known | None:
        source = source_of(node)
        if source.kind is SourceKind.CONSTANT:
            return Known(self._graph.constants[source.name])
        if source.kind is SourceKind.SCALAR and source.name == LOSS_SCALING:
            return Known(torch.tensor(self._loss_scaling, dtype=torch.float64))
        number = self._given.get(given_name(node))
        tensor = None if number is None else self._run.read(number, FIRST)
        if tensor is not None and tensor.shape == node.meta["val"].shape:
            return Known(tensor)
        return None if self._others is None else self._others.value(node)

    def _made(self, operation: fx.Node) -> _Made | None:
        if operation not in self._results:
            self._results[operation] = self._viewed(operation) or self._computed(operation)
        return self._results[operation]

    def _viewed(self, operation: fx.Node) -> _Made | None:
        """Returns views of the run's own values; `None` if the operation is not such a view."""
        call = self._call(operation) if is_view(operation) else None
        if call is None or any(off is not None for off in call.slack):
            return None
        try:
            results = results_of(call.target, (call.args, call.kwargs))
        except FAILURES:
            return None
        return results, [None] * len(results)

    def _computed(self, operation: fx.Node) -> _Made | None:
        expected = self.exact(operation)
        if expected is None:
            return None
        return expected.made(operation, has_wide_sums=self.has_wide_sums)


@dataclass(frozen=True)
class _Call:
    """An operation with its inputs, and the largest error of each of them."""

    target: OpOverload
    args: Any
    kwargs: Any
    slack: list[torch.Tensor | None]


class Expectation:
    """The exact results of an operation, and bounds for the distance of a run from them."""

    def __init__(
        self,
        exact: Exact,
        slack: list[tuple[int, torch.Tensor]],
        dtypes: list[torch.dtype],
    ) -> None:
        """Computes the effect of inexact inputs on the exact results.

        Args:
            exact: the operation in float64.
            slack: (index among the tensor inputs, largest error of each element), for inexact
                inputs.
            dtypes: types of the inputs.
        """
        self.results = exact.results
        self._exact = exact
        self._spread = exact.spread(slack) if slack else [None] * len(exact.results)
        self._short = next((dtype for dtype in dtypes if dtype in HALF_TYPES), None)

    def bound(self, result: int, dtype: torch.dtype) -> Bound:
        """Returns the bound for a result of the type `dtype`."""
        short = dtype if dtype in HALF_TYPES else self._short
        bound, spread = self._exact.bound(result, dtype, short), self._spread[result]
        return bound if spread is None else Bound(bound.tight + spread, bound.loose + spread)

    def made(self, operation: fx.Node, *, has_wide_sums: bool) -> _Made:
        """Returns the results and the largest error of each; `None` for the error of an exact one.

        Args:
            operation: node of the operation.
            has_wide_sums: whether to suppose that no sum is in a short type.
        """
        values = operation.meta["val"]
        metas = values if isinstance(values, (tuple, list)) else [values]
        slack: list[Any] = []
        for number, (result, meta) in enumerate(zip(self.results, metas, strict=False)):
            if not is_float(result) or (is_view(operation) and self._spread[number] is None):
                slack.append(None)
            else:
                bound = self.bound(number, meta.dtype)
                slack.append(bound.tight if has_wide_sums else bound.loose)
        return self.results, slack


def call_of(operation: fx.Node) -> tuple[OpOverload, Any, Any] | None:
    """Returns (operator, args, kwargs) that repeat an operation; `None` if none can.

    A dropout is repeated as the product of its recorded mask and its input.
    """
    target = operation.target
    if not isinstance(target, OpOverload) or not _can_be_run(target):
        return None
    if target is not DROPOUT:
        return target, operation.args, operation.kwargs
    mask = next((user for user in operation.users if is_drawn(user)), None)
    call = arguments_of(operation)
    if mask is None or call.p == 1.0:
        return None
    value, share = call.input, call.p
    return aten.native_dropout_backward.default, (value, mask, 1.0 / (1.0 - share)), {}


def last_uses(graph: Graph) -> dict[fx.Node, list[fx.Node]]:
    """Returns, for each node, the operations whose results nobody reads after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.fx.nodes:
        if node.op == "call_function":
            last[operation_of(node)] = node
            for value in node.all_input_nodes:
                if value.op == "call_function":
                    last[operation_of(value)] = node
    ends: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for operation, node in last.items():
        ends[node].append(operation)
    return ends


def _can_be_run(target: OpOverload) -> bool:
    traits = traits_of(target)
    needs_engine = traits.runs_bodies or traits.crosses_replicas
    return not (traits.is_seen_outside or needs_engine or traits.is_foreign)


def _is_wide(value: Any) -> bool:
    """Returns whether a value is a float64 tensor with axes; a scalar widens no other argument."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64 and value.dim() > 0

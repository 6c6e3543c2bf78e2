"""Builds the graph of several micro-batches from the graph of one.

A value of the graph can have several forms, and each form is computed when an operation first needs
it. An operation that computes row by row runs once, on the rows of all micro-batches. Any other
operation runs once for each micro-batch, on that micro-batch's piece of the rows. Such an operation
has the same bits as without joining, so that any graph can be joined. The gradient of a weight is
only needed as the sum over the micro-batches, which one product of all rows computes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.joining.call import Call, Form, Joined, NotByRowsError
from poptorch_emu.engine.joining.row_layout import RowLayout, joined_value
from poptorch_emu.engine.joining.row_rules import joined_form
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.passes.simplify import remove_dead
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

_FORWARD = (Kind.FORWARD, 0)


@dataclass
class _Forms:
    """The forms of one value in the joined graph.

    Attributes:
        shared: the value, if it is the same for all micro-batches.
        layout: place of the rows, if the value was first computed as rows.
        rows: tensor with all rows, by layout; and by reading stage if the value has no stage
            itself.
        pieces: one value for each micro-batch, by the stage that cut them out of the rows, or
            `None` if they were computed one by one.
        total: the sum over the micro-batches.
        plan: the operation's way to compute rows or the sum at once, if there is one.
    """

    shared: fx.Node | None = None
    layout: RowLayout | None = None
    rows: dict[tuple[RowLayout, Port | None], fx.Node] = field(default_factory=dict)
    pieces: dict[Port | None, list[fx.Node]] = field(default_factory=dict)
    total: fx.Node | None = None
    plan: Joined | None = None
    is_linear: bool = False

    @property
    def is_sum(self) -> bool:
        """Whether the value has neither rows nor pieces yet, but may have its sum."""
        return not (self.shared or self.rows or self.pieces)


def joined(code: EngineGraph, count: int) -> EngineGraph:
    """Returns the graph of `count` micro-batches; the graph of `code` stays unchanged."""
    return _Joiner(code, count).run()


class _Joiner:
    def __init__(self, code: EngineGraph, count: int) -> None:
        self._old, self._count = code, count
        graph = replace(code.graph, fx=fx.Graph(), sinks=())
        self._code = replace(
            code,
            graph=graph,
            placed=replace(code.placed, port_of={}),
            made=set(),
            joined=count,
        )
        self._forms: dict[fx.Node, _Forms] = {}

    def run(self) -> EngineGraph:
        for node in self._old.graph.fx.nodes:
            if node.op == "placeholder":
                self._forms[node] = self._add_source(node)
            elif node.op == "call_function":
                self._forms[node] = self._add_operation(node)
        results: list[tuple[Sink, fx.Node]] = []
        for sink, node in self._old.graph.results:
            results += self._results(sink, node)
        self._code.graph.set_results(results)
        remove_dead(self._code.graph)
        return self._code

    # Functions that add sources and results to the joined graph.

    def _add_source(self, node: fx.Node) -> _Forms:
        source, value = source_of(node), node.meta["val"]
        if source.kind is SourceKind.RNG:
            states = [replace(source, name=str(piece)) for piece in range(self._count)]
            pieces = [self._copy_source(node, value, each) for each in states]
            return _Forms(pieces={None: pieces})
        if source.kind is SourceKind.INPUT and value.dim() > 0:
            layout = RowLayout(0)
            copy = self._copy_source(node, joined_value(value, layout, self._count), source)
            return _Forms(layout=layout, rows={(layout, None): copy})
        return _Forms(shared=self._copy_source(node, value, source))

    def _copy_source(self, node: fx.Node, value: torch.Tensor, source: Any) -> fx.Node:
        copy = self._code.graph.add_source(source, value, record_of(node))
        port = self._old.placed.port_of.get(node)
        if port is not None:
            self._code.placed.port_of[copy] = port
        return copy

    def _results(self, sink: Sink, node: fx.Node) -> list[tuple[Sink, fx.Node]]:
        if sink.kind is SinkKind.GRADIENT:
            return [(sink, self._total(node))]
        whole = self._forms[node].rows.get((RowLayout(0), None))
        if whole is not None:
            return [(replace(sink, num_pieces=self._count), whole)]
        pieces = self._pieces(node, self._old.placed.port_of.get(node, _FORWARD))
        return [(replace(sink, piece=piece), each) for piece, each in enumerate(pieces)]

    # Functions that add operations to the joined graph, called in the order of the graph.

    def _add_operation(self, node: fx.Node) -> _Forms:
        if node.target is operator.getitem:
            return self._select(node)
        inputs = node.all_input_nodes
        if traits_of(node.target).reads_shape_only:
            return _Forms(shared=self._repeat(node, 0))
        if all(self._forms[each].shared is not None for each in inputs):
            shared = self._repeat(node, 0)
            if node in self._old.made:
                self._code.made.add(shared)
            return _Forms(shared=shared)
        if any(self._forms[each].is_sum for each in inputs):
            if self._is_linear(node):
                return _Forms(is_linear=True)
            return _Forms(pieces={None: self._repeated(node)})
        try:
            form = joined_form(Call(node, self._count, self._form))
            self._check(node, form)
        except NotByRowsError:
            return _Forms(pieces={None: self._repeated(node)})
        if form.results == (Form.SUM,):
            return _Forms(plan=form)
        (first, *_) = form.results
        assert isinstance(first, RowLayout), "the first result of several has rows"
        made = self._do_all(node, form)
        return _Forms(layout=first, rows={(first, None): made}, plan=form)

    def _form(self, node: fx.Node) -> RowLayout | Form:
        forms = self._forms[node]
        if forms.shared is not None:
            return Form.SHARED
        return forms.layout or Form.PIECES

    def _check(self, node: fx.Node, form: Joined) -> None:
        """Rejects an operation if an argument without a layout differs between micro-batches."""
        for name, value in vars(arguments_of(node)).items():
            nodes = value if isinstance(value, (list, tuple)) else [value]
            for each in nodes:
                is_own = isinstance(each, fx.Node) and self._forms[each].shared is None
                if is_own and name not in form.layouts:
                    raise NotByRowsError

    def _is_linear(self, node: fx.Node) -> bool:
        # Adding a number is not linear, because the sum contains it once for each micro-batch.
        has_tensors = all(isinstance(each, fx.Node) for each in node.args[:2])
        is_addition = node.target is aten.add.Tensor and has_tensors
        return traits_of(node.target).is_linear or is_addition

    def _select(self, node: fx.Node) -> _Forms:
        """Adds the selection of one result of an operation with several results."""
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        forms = self._forms[source]
        if forms.shared is not None:
            return _Forms(shared=self._take(node, forms.shared, index))
        if forms.plan is None:
            pieces = [self._take(node, each, index) for each in forms.pieces[None]]
            return _Forms(pieces={None: pieces})
        result = forms.plan.results[index]
        (made,) = forms.rows.values()
        if isinstance(result, RowLayout):
            whole = self._take(node, made, index, result)
            return _Forms(layout=result, rows={(result, None): whole})
        if result is Form.SUM:
            return _Forms(total=self._take(node, made, index))
        return _Forms(pieces={None: self._selected_pieces(node)})

    def _selected_pieces(self, node: fx.Node) -> list[fx.Node]:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        pieces = self._forms[source].pieces
        if None not in pieces:
            pieces[None] = self._repeated(source)
        return [self._take(node, each, index) for each in pieces[None]]

    def _take(
        self, node: fx.Node, made: fx.Node, index: int, layout: RowLayout | None = None
    ) -> fx.Node:
        value = node.meta["val"]
        if layout is not None:
            value = joined_value(value, layout, self._count)
        return self._emit(node, operator.getitem, (made, index), {}, value, None)

    # Functions that return a form of a value, and create it at its first use.

    def _rows(self, node: fx.Node, layout: RowLayout, port: Port) -> fx.Node:
        """Returns the tensor with all rows of a value in a layout, for a reader on `port`."""
        forms = self._forms[node]
        own_port = self._old.placed.port_of.get(node)
        at = None if own_port is not None or layout == forms.layout else port
        if (layout, at) not in forms.rows:
            pieces = self._pieces(node, own_port or port)
            forms.rows[layout, at] = self._put_together(node, pieces, layout, own_port or port)
        return forms.rows[layout, at]

    def _put_together(
        self, node: fx.Node, pieces: list[fx.Node], layout: RowLayout, port: Port
    ) -> fx.Node:
        value = node.meta["val"]
        whole = joined_value(value.contiguous(), layout, self._count)
        if layout.outer == 1:
            return self._emit(node, aten.cat.default, (pieces, layout.dim), {}, whole, port)
        split = [*value.shape[: layout.dim], *layout.split(value.shape)]
        split += value.shape[layout.dim + 1 :]
        like = torch.empty(split, dtype=value.dtype, device="meta")
        views = [
            self._emit(node, aten.reshape.default, (piece, split), {}, like, port)
            for piece in pieces
        ]
        inner = RowLayout(layout.dim + 1)
        likes = joined_value(like, inner, self._count)
        joined = self._emit(node, aten.cat.default, (views, inner.dim), {}, likes, port)
        shape = list(whole.shape)
        return self._emit(node, aten.reshape.default, (joined, shape), {}, whole, port)

    def _pieces(self, node: fx.Node, port: Port) -> list[fx.Node]:
        """Returns the values of the single micro-batches, for a reader on `port`."""
        forms = self._forms[node]
        if forms.shared is not None:
            return [forms.shared] * self._count
        if None in forms.pieces:
            return forms.pieces[None]
        if forms.is_sum:
            is_part = node.target is operator.getitem
            pieces = self._selected_pieces(node) if is_part else self._repeated(node)
            forms.pieces[None] = pieces
            return pieces
        if port not in forms.pieces:
            assert forms.layout is not None, "rows were made first"
            whole = forms.rows[forms.layout, None]
            forms.pieces[port] = [
                self._cut_out(node, whole, forms.layout, piece, port)
                for piece in range(self._count)
            ]
        return forms.pieces[port]

    def _cut_out(
        self, node: fx.Node, whole: fx.Node, layout: RowLayout, piece: int, port: Port
    ) -> fx.Node:
        value, joined = node.meta["val"], whole.meta["val"]
        size = value.shape[layout.dim]
        if layout.outer == 1:
            args = (whole, layout.dim, piece * size, (piece + 1) * size)
            like = joined.narrow(layout.dim, piece * size, size)
            part = self._emit(node, aten.slice.Tensor, args, {}, like, port)
            if like.is_contiguous() or not value.is_contiguous():
                return part
            # Some kernels assume that a value is contiguous as it is in one micro-batch. For
            # example, the gradient of a layer norm reads means without their strides.
            contiguous = {"memory_format": torch.contiguous_format}
            return self._emit(node, aten.clone.default, (part,), contiguous, value, port)
        outer, inner = layout.split(value.shape)
        before, after = value.shape[: layout.dim], value.shape[layout.dim + 1 :]
        split = [*before, outer, self._count, inner, *after]
        like = torch.empty(split, dtype=value.dtype, device="meta")
        seen = self._emit(node, aten.reshape.default, (whole, split), {}, like, port)
        dim = layout.dim + 1
        part = self._emit(
            node, aten.select.int, (seen, dim, piece), {}, like.select(dim, piece), port
        )
        shape = list(value.shape)
        return self._emit(node, aten.reshape.default, (part, shape), {}, value, port)

    def _total(self, node: fx.Node) -> fx.Node:
        """Returns the sum of a value over the micro-batches."""
        forms = self._forms[node]
        if forms.total is None:
            forms.total = self._make_total(node, forms)
        return forms.total

    def _make_total(self, node: fx.Node, forms: _Forms) -> fx.Node:
        port = self._old.placed.port_of.get(node, _FORWARD)
        value = node.meta["val"]
        if forms.shared is not None:
            args = (forms.shared, self._count)
            return self._emit(node, aten.mul.Scalar, args, {}, value, port)
        if forms.is_linear:
            return self._copy(node, self._total, value)
        if forms.plan is not None and forms.plan.results == (Form.SUM,):
            return self._do_all(node, forms.plan)
        total, *others = self._pieces(node, port)
        for each in others:
            total = self._emit(node, aten.add.Tensor, (total, each), {}, value, port)
        return total

    # Functions that add a single operation to the joined graph.

    def _repeated(self, node: fx.Node) -> list[fx.Node]:
        """Adds an operation once for each micro-batch."""
        return [self._repeat(node, piece) for piece in range(self._count)]

    def _repeat(self, node: fx.Node, piece: int) -> fx.Node:
        port = self._old.placed.port_of.get(node, _FORWARD)
        return self._copy(node, lambda each: self._pieces(each, port)[piece], node.meta["val"])

    def _copy(self, node: fx.Node, value_of: Any, value: Any) -> fx.Node:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
        return self._emit(node, node.target, args, kwargs, value, None)

    def _do_all(self, node: fx.Node, form: Joined) -> fx.Node:
        """Adds an operation once for all micro-batches."""
        port = self._old.placed.port_of[node]
        target: OpOverload = node.target  # type: ignore[assignment]
        named = {**vars(arguments_of(node)), **form.changes}
        values = {
            name: self._argument(value, form.layouts.get(name), port)
            for name, value in named.items()
        }
        names = [each.name for each in target._schema.arguments if not each.kwarg_only]
        args = tuple(values.pop(name) for name in names)
        given = {name: value for name, value in values.items() if name in node.kwargs}
        return self._emit(node, target, args, given, self._value(node, form), port)

    def _argument(self, value: Any, layout: RowLayout | None, port: Port) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._argument(each, layout, port) for each in value]
        if not isinstance(value, fx.Node):
            return value
        return self._forms[value].shared if layout is None else self._rows(value, layout, port)

    def _value(self, node: fx.Node, form: Joined) -> Any:
        """Returns tensors with the metadata of the results of a joined operation."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return self._like(value, form.results[0])
        return [self._like(*each) for each in zip(value, form.results, strict=True)]

    def _like(self, value: Any, result: RowLayout | Form) -> Any:
        # A result that is not computed is `None`.
        if isinstance(value, torch.Tensor) and isinstance(result, RowLayout):
            return joined_value(value, result, self._count)
        return value

    def _emit(
        self, node: fx.Node, target: Any, args: Any, kwargs: Any, value: Any, port: Port | None
    ) -> fx.Node:
        """Adds an operation for an old node, on that node's stage unless `port` is given."""
        graph: Graph = self._code.graph
        made = graph.add_operation(target, args, kwargs, value, record_of(node))
        own = self._old.placed.port_of.get(node)
        placed = port if port is not None else own
        if placed is not None:
            self._code.placed.port_of[made] = placed
        return made

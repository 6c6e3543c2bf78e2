"""Removes mutation: afterwards no operation changes its arguments.

A value that was written into a source becomes a result of the graph with its own sink, for example
batch-norm statistics, a buffer or an input. The graph is replayed under PyTorch's functionalisation
and recorded again by the recorder of the trace. Each new operation keeps the record of the one that
it replaces. A graph without mutation does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, SourceKind, record_of, replay, source_of
from poptorch_emu.ir.mutation import is_mutating
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.passes.memory_order import STRIDED
from poptorch_emu.torch_versions import FakeTensorMode, meta_registrations
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker, fake_like
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.pytorch.patches import patched
from poptorch_emu.trace.recording.recorder import IPU, Recorder

aten = torch.ops.aten

_SINK_OF = {SourceKind.VARIABLE: SinkKind.VARIABLE, SourceKind.INPUT: SinkKind.INPUT}


def run(graph: Graph, fake_mode: FakeTensorMode, memo: ResultMemo) -> Graph:
    """Returns an equivalent graph without mutation in it or in its regions.

    Args:
        graph: graph that may mutate.
        fake_mode: mode of its fake tensors.
        memo: known metadata of results.
    """
    regions = {name: _without_effects(run(r, fake_mode, memo)) for name, r in graph.regions.items()}
    graph.regions.update(regions)
    if not any(is_mutating(node) for node in graph.operations):
        return graph
    functional = Graph(constants=graph.constants, regions=graph.regions, repeats=graph.repeats)
    recorder = _Replayed(functional, memo)
    fakes, values = FakeMaker(IPU), []
    for source in graph.sources:
        size, stride = source.meta["layout"]
        value = fakes.empty(fake_mode, size, source.meta["val"].dtype, stride)
        recorder.add_source(source_of(source), value, record_of(source))
        values.append(value)

    reshapes = any(torch.Tag.inplace_view in _tags(node) for node in graph.operations)

    def replay_all(*inputs: torch.Tensor) -> list[Any]:
        # A source keeps its shape where forward squeezes or transposes it in place.
        values = [aten.alias.default(value) for value in inputs] if reshapes else inputs
        return replay(graph, values, before=recorder.begin)

    # PyTorch's check would load SymPy. It is not needed, because the operations have run once.
    unchecked = patched(meta_registrations, check_inplace_broadcast=lambda *_: None)
    with torch.no_grad(), fake_mode, recorder, unchecked:
        try:
            results = torch.func.functionalize(replay_all, remove="mutations")(*values)
        except RuntimeError as cause:
            raise _not_functional(recorder.record, cause) from None
    ends = [
        (sink, _node_of(recorder, result))
        for (sink, _), result in zip(graph.results, results, strict=True)
    ]
    functional.set_results([*ends, *_write_backs(functional)])
    return functional


class _Replayed(Recorder):  # type: ignore[no-untyped-call]
    """Records a graph again; what the graph changes in place keeps its strides.

    The operation that replaces such a change may return other strides than the changed value has,
    although later views rely on these strides.
    """

    def __init__(self, graph: Graph, memo: ResultMemo) -> None:
        super().__init__(graph, lambda _: self.record, memo=memo)
        self.record = NodeRecord()
        self._changing = ""

    def begin(self, node: fx.Node) -> None:
        """Says which operation is replayed now."""
        self.record = record_of(node)
        self._changing = str(node.target._schema.name) if is_mutating(node) else ""  # type: ignore[union-attr]

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = super()._run(func, args, kwargs)
        if f"{func._schema.name}_" != self._changing:
            return result
        if isinstance(args[0], torch.Tensor):
            return self._as_changed(result, args[0])
        return [self._as_changed(*pair) for pair in zip(result, args[0], strict=True)]

    def _as_changed(self, result: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        """Returns the result with the strides that a new tensor like the changed one has."""
        strides = fake_like(changed, changed.dtype).stride()
        if result.shape != changed.shape or result.stride() == strides:
            return result
        strided: torch.Tensor = super()._run(STRIDED, (result, list(strides)), {})
        return strided


def _tags(node: fx.Node) -> list[torch.Tag]:
    return getattr(node.target, "tags", [])


def _not_functional(record: NodeRecord, cause: RuntimeError) -> Error:
    reason = str(cause).splitlines()[0].partition(". ")[0]
    return compiler_error(
        f"The tensor that is changed in place at {record.source} shares memory with other tensors "
        f"in a way that a compiled graph cannot express ({reason}). Change a copy of it (clone())."
    )


def _without_effects(region: Graph) -> Graph:
    """Drops the values that a body wrote into its parameters, which are copies of outer values."""
    region.set_results(
        (sink, node) for sink, node in region.results if sink.kind is SinkKind.OUTPUT
    )
    return region


def _node_of(recorder: Recorder, value: torch.Tensor) -> fx.Node:
    node = recorder.find(value)
    assert node is not None, "functionalisation returned a tensor that was not recorded"
    return node


def _write_backs(graph: Graph) -> list[tuple[Sink, fx.Node]]:
    """Turns the final `copy_` into each changed source into a result of the graph."""
    written: dict[fx.Node, fx.Node] = {}
    for node in list(graph.operations):
        if node.target is not aten.copy_.default:
            continue
        target, value = node.args[:2]
        assert isinstance(target, fx.Node) and isinstance(value, fx.Node), "copy_ takes tensors"
        if target.op == "placeholder":
            written[target] = value
            node.replace_all_uses_with(value)
            graph.fx.erase_node(node)
    return [
        (Sink(_SINK_OF[source_of(target).kind], source_of(target).name), value)
        for target, value in written.items()
        if source_of(target).kind in _SINK_OF
    ]

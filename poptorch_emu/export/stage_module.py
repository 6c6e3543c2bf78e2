"""Writes one stage as a `torch.fx.GraphModule` of ATen operations.

Values of the stage before are positional arguments; inputs of the model are keywords. Other
keywords are ignored, because all stages of a process receive the same ones. Weights keep the user's
names.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

from poptorch_emu.export.forward import ForwardStages
from poptorch_emu.export.pipeline_spec import input_name
from poptorch_emu.export.rewriting import ATTENTION, BATCH_NORM, attention, frozen_norm, rewrite
from poptorch_emu.ir.graph import SourceKind, operation_of, record_of, source_of
from poptorch_emu.ir.mutation import shares_memory

aten = torch.ops.aten


@dataclass(frozen=True)
class Values:
    """The tensors of a model on the host.

    Attributes:
        parameters: parameters by the user's names.
        buffers: buffers by the user's names.
        constants: constants by the compiler's names.
        saved: names of the buffers in a state dict.
    """

    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    saved: Set[str]


def stage_module(
    stages: ForwardStages,
    stage: int,
    values: Values,
    with_gradient: Set[fx.Node],
    device: torch.device,
    *,
    recomputes: bool = True,
) -> fx.GraphModule:
    """Returns the module of `stage`, with copies of the weights.

    Args:
        stages: all stages.
        stage: index of the stage.
        values: tensors of the model.
        with_gradient: values that have a gradient.
        device: device of the copies, and of tensors that the stage creates.
        recomputes: whether to keep the user's calls of `torch.utils.checkpoint`.
    """
    writer = _Writer(stages, stage, values, device)
    for call, nodes in groupby(stages.nodes[stage], _recomputed_call):
        if call and recomputes:
            writer.add_recomputed(list(nodes), stages.returned(stage))
        else:
            for node in nodes:
                writer.add(node)
    results = [writer.result(node, with_gradient) for node in stages.returned(stage)]
    writer.graph.output(tuple(results))
    writer.graph.eliminate_dead_code()
    module = fx.GraphModule(writer.root, writer.graph, f"Stage{stage}")
    for name in writer.unsaved:
        holder, _, last = name.rpartition(".")
        owner = module.get_submodule(holder)
        owner.register_buffer(last, owner.get_buffer(last), persistent=False)
    return module


class _Writer:
    """Writes the operations of one stage."""

    def __init__(
        self, stages: ForwardStages, stage: int, values: Values, device: torch.device
    ) -> None:
        self.graph = fx.Graph()
        self.root = nn.Module()
        self.unsaved: list[str] = []  # Needed because `GraphModule` makes all buffers persistent.
        self._values = values
        self._device = device
        self._is_last = stage == stages.num_stages - 1
        self._is_training = stages.loss is not None
        self._new: dict[fx.Node, fx.Node] = {}
        sources = stages.sources_of(stage)
        for index, node in enumerate(stages.received(stage)):
            self._new[node] = self.graph.placeholder(f"received_{index}")
        for node in sources:
            source = source_of(node)
            if source.kind is SourceKind.INPUT:
                self._new[node] = self.graph.placeholder(input_name(source.name))
        self.graph.placeholder("**other_inputs")
        for node in sources:
            if source_of(node).kind in (SourceKind.VARIABLE, SourceKind.CONSTANT):
                self._new[node] = self._attribute(node)

    def add(self, node: fx.Node) -> None:
        """Writes one operation, or the selection of one of its results."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda value: self._new.get(value))
        if node.target is operator.getitem and node.args[0].target is ATTENTION:  # type: ignore[union-attr]
            self._new[node] = self._new[node.args[0]]  # type: ignore[index]
            return
        if node.target is ATTENTION:
            self._new[node] = attention(args, kwargs, self._call)
        elif node.target is BATCH_NORM:
            self._new[node] = frozen_norm(args, self._call)
        else:
            self._new[node] = rewrite(node, args, kwargs, self._device, self._call)

    def add_recomputed(self, nodes: Sequence[fx.Node], returned: Sequence[fx.Node]) -> None:
        """Writes a call of `torch.utils.checkpoint` for a module that runs `nodes`."""
        inside = set(nodes)
        given = [value for node in nodes for value in node.all_input_nodes if value not in inside]
        given = [value for value in dict.fromkeys(given) if value in self._new]
        kept = [node for node in nodes if node in returned or not inside.issuperset(node.users)]
        kept = [node for node in kept if isinstance(node.meta["val"], torch.Tensor)]
        outer, known = self.graph, self._new
        self.graph = fx.Graph()
        self._new = {v: self.graph.placeholder(f"value_{i}") for i, v in enumerate(given)}
        for node in nodes:
            self.add(node)
        self.graph.output(tuple(self._new[node] for node in kept))
        name = f"recomputed_{len(self.root._modules)}"
        self.root.add_module(name, fx.GraphModule(nn.Module(), self.graph))
        self.graph, self._new = outer, known
        arguments = (outer.get_attr(name), *(known[value] for value in given))
        called = self._call(checkpoint, arguments, {"use_reentrant": False})
        for index, node in enumerate(kept):
            known[node] = self._call(operator.getitem, (called, index), {})

    def result(self, node: fx.Node, with_gradient: Set[fx.Node]) -> fx.Node:
        """Returns the value that leaves the stage for `node`.

        A value that is sent must be contiguous. No value may be a view, because PyTorch detaches
        it in place.
        """
        new = self._new[node]
        if self._is_last and not self._is_training:
            return new
        if shares_memory(node):
            layout = {"memory_format": torch.contiguous_format}
            new = self._call(aten.clone.default, (new,), layout)
        if self._is_last:
            return new
        if node not in with_gradient and node.meta["val"].is_floating_point():
            new = self._call(aten.detach.default, (new,), {})
        return self._call(aten.contiguous.default, (new,), {})

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        return self.graph.call_function(target, args, kwargs)

    def _attribute(self, node: fx.Node) -> fx.Node:
        """Adds a copy of a weight, buffer or constant to the module, and reads it."""
        name, dtype = source_of(node).name, node.meta["val"].dtype
        values = self._values
        if name in values.parameters:
            value = values.parameters[name]
            copy = value.detach().to(self._device, dtype, copy=True)
            parameter = nn.Parameter(copy, requires_grad=value.requires_grad)
            self._holder(name).register_parameter(name.rpartition(".")[2], parameter)
            return self.graph.get_attr(name)
        is_buffer = name in values.buffers
        value = (values.buffers if is_buffer else values.constants)[name]
        copy = value.detach().to(self._device, dtype, copy=True)
        self._holder(name).register_buffer(name.rpartition(".")[2], copy)
        if name not in values.saved:
            self.unsaved.append(name)
        return self.graph.get_attr(name)

    def _holder(self, name: str) -> nn.Module:
        """Returns the module inside `root` that contains a dotted name."""
        holder = self.root
        for part in name.split(".")[:-1]:
            if part not in holder._modules:
                holder.add_module(part, nn.Module())
            holder = holder.get_submodule(part)
        return holder


def _recomputed_call(node: fx.Node) -> int:
    return record_of(operation_of(node)).recomputed_call


def source_line(node: fx.Node) -> str:
    """Returns the user's line of an operation, for messages."""
    return record_of(node).source or "an unknown line"

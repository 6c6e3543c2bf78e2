"""Which layer call runs in which stage of a pipeline, and the order of calls that follows.

A call of a layer on symbolic tensors is a node of Keras's graph; a layer that is called twice has
two. Stages belong to nodes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
from keras.src.models.functional import Functional
from keras.src.ops.node import Node

from poptorch_emu.keras.stage_entries import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from poptorch_emu.ops.block_annotations import Block
from poptorch_emu.trace.blocks import is_tracing

_stage_of_node: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_local = threading.local()
_make_node = Node.__init__
_FunctionalLayer = FunctionalLayerPipelineStageAssignment
# Of models of a class of their own: the graph of their `call`.
CALL_GRAPH = "_poptorch_call_graph"


def _make_marked_node(self: Any, *args: Any, **kwargs: Any) -> None:
    _make_node(self, *args, **kwargs)
    stages = getattr(_local, "stages", None)
    if stages:
        _stage_of_node[self] = stages[-1]


class PipelineStage:
    """Puts the layers that are called in a `with` statement in one stage of a pipeline (exact).

    For the functional API, and for the `call` of a model of a class of its own.
    """

    def __init__(self, stage: int) -> None:
        """Takes the number of the stage, from 0.

        Raises:
            ValueError: it is no integer from 0 on.
        """
        self._stage = checked_stage(stage)

    def __enter__(self) -> PipelineStage:
        """Marks the calls that follow.

        Raises:
            ValueError: inside another stage, or while a model runs.
        """
        if is_tracing():
            raise ValueError(
                f"PipelineStage({self._stage}) is entered in the call() of a layer, or of a model "
                "whose inputs were not known when it was compiled. Enter stages in the call() of "
                "the model alone, and call its build(input_shape) first; or use the functional "
                "API, keras.Model(inputs, outputs)."
            )
        vars(_local).get("noted", []).append(self._stage)
        stages = vars(_local).setdefault("stages", [])
        if stages:
            raise ValueError(
                f"PipelineStage({self._stage}) is entered inside PipelineStage({stages[-1]}). "
                "Leave one stage before the next."
            )
        stages.append(self._stage)
        Node.__init__ = _make_marked_node  # For good: other threads may be in a stage, too.
        return self

    def __exit__(self, *failure: object) -> None:
        """Ends the stage."""
        _local.stages.pop()


@dataclass(frozen=True)
class StagePlan:
    """The calls of a model's graph by stage.

    Attributes:
        nodes: of each stage, in order.
        ipus: of each stage, numbered in the order of their first stages, since the engine begins
            on IPU 0.
    """

    nodes: tuple[tuple[Any, ...], ...]
    ipus: tuple[int, ...]

    @property
    def num_ipus(self) -> int:
        """How many IPUs one replica has."""
        return max(self.ipus) + 1

    @property
    def num_turns(self) -> int:
        """How many stages there are if neighbours on one IPU are one, as the engine runs them."""
        return 1 + sum(one != other for one, other in pairwise(self.ipus))


@contextmanager
def noted_stages() -> Iterator[list[int]]:
    """Notes the stages that are entered, in a list."""
    before = vars(_local).get("noted", [])
    noted = vars(_local)["noted"] = []
    try:
        yield noted
    finally:
        vars(_local)["noted"] = before


def checked_stage(stage: Any) -> int:
    """Returns a stage's number.

    Raises:
        ValueError: it is no integer from 0 on.
    """
    if not isinstance(stage, int) or isinstance(stage, bool) or stage < 0:
        raise ValueError(f"A pipeline stage must be an integer from 0 on, not {stage!r}.")
    return stage


def graph_of(model: Any) -> Any:
    """Returns the functional model that runs for `model`.

    Raises:
        ValueError: there is none.
    """
    graph = _graph_or_none(model)
    if not isinstance(graph, Functional):
        raise ValueError(
            f"Model {model.name!r} has no graph of layers to divide into stages: pipelines need a "
            "keras.Sequential whose first entry is a keras.Input, or a functional model, "
            "keras.Model(inputs, outputs), or a call() that enters PipelineStage."
        )
    return graph


def _graph_or_none(model: Any) -> Any:
    if isinstance(model, keras.Sequential):
        return model._functional
    return vars(model).get(CALL_GRAPH) or model


def running_model(model: Any) -> Any:
    """Returns what runs for a model that has stages: itself, or the graph of its `call`."""
    return vars(model).get(CALL_GRAPH) or model


def assignments_of(model: Any) -> list[Any]:
    """Returns the calls of a functional model, or of a `call`, with their stages."""
    is_of_call = CALL_GRAPH in vars(model)
    kind = ModelLayerPipelineStageAssignment if is_of_call else _FunctionalLayer
    return [_entry(node, kind, _stage_of_node.get(node)) for node in nodes_of(graph_of(model))]


def assignments_of_layers(model: Any, stages: Sequence[int] | None) -> list[Any]:
    """Returns the layers of a Sequential with their stages."""
    given: Sequence[int | None] = stages or [None] * len(model.layers)
    return [
        SequentialNestedModelPipelineStageAssignment(layer, _nested(layer, stage))
        if isinstance(layer, keras.Model)
        else SequentialLayerPipelineStageAssignment(layer, stage)
        for layer, stage in zip(model.layers, given, strict=True)
    ]


def _entry(node: Any, kind: type[FunctionalLayerPipelineStageAssignment], stage: Any) -> Any:
    layer = node.operation
    index = layer._inbound_nodes.index(node)
    if isinstance(layer, keras.Model):
        nested = _nested(layer, stage)
        return FunctionalNestedModelPipelineStageAssignment(layer, index, nested)
    return kind(layer, index, stage)


def _nested(model: Any, stage: int | None) -> list[Any]:
    """Returns the entries of a model inside of another one, which is in this stage as a whole."""
    if isinstance(model, keras.Sequential):
        stages = None if stage is None else [stage] * len(model.layers)
        return assignments_of_layers(model, stages)
    graph = _graph_or_none(model)
    if isinstance(graph, Functional):
        return [_entry(node, _FunctionalLayer, stage) for node in nodes_of(graph)]
    return [SequentialLayerPipelineStageAssignment(layer, stage) for layer in model.layers]


def assign(model: Any, assignments: Sequence[Any]) -> None:
    """Gives the calls of a functional model their stages.

    Raises:
        TypeError: an entry is no assignment.
        ValueError: a stage is no number, or a call is not part of the model.
    """
    nodes = nodes_of(graph_of(model))
    for each in assignments:
        if not isinstance(each, _FunctionalLayer):
            raise TypeError(
                "set_pipeline_stage_assignment of a functional model takes the entries of "
                f"get_pipeline_stage_assignment(), not {each!r}."
            )
        checked_stage(each.pipeline_stage)
        if each.node not in nodes:
            raise ValueError(
                f"Call {each.node_index} of layer {each.layer.name!r} is not part of "
                f"model {model.name!r}. Take the entries of its get_pipeline_stage_assignment()."
            )
    for each in assignments:
        _stage_of_node[each.node] = checked_stage(each.pipeline_stage)


def unassign(model: Any) -> None:
    """Takes the stages of all calls away."""
    for node in nodes_of(graph_of(model)):
        _stage_of_node.pop(node, None)


def sequential_stages(model: Any, entries: Sequence[Any]) -> tuple[int, ...]:
    """Returns the stage of each layer, from numbers or from entries in the order of the layers.

    Raises:
        ValueError: there are not as many as layers, a stage is no number or lower than the one
            before, or an entry is of another layer.
    """
    if len(entries) != len(model.layers):
        raise ValueError(
            f"set_pipeline_stage_assignment got {len(entries)} stages, but model {model.name!r} "
            f"has {len(model.layers)} layers: {', '.join(layer.name for layer in model.layers)}. "
            "Give one stage for each layer."
        )
    stages: list[int] = []
    for layer, entry in zip(model.layers, entries, strict=True):
        is_entry = isinstance(
            entry, SequentialLayerPipelineStageAssignment | NestedModelPipelineStageAssignment
        )
        if is_entry and entry.layer is not layer:
            raise ValueError(
                f"The entry of layer {entry.layer.name!r} stands where model {model.name!r} has "
                f"{layer.name!r}. Give the entries of its get_pipeline_stage_assignment() in their "
                "order."
            )
        stage = checked_stage(entry.pipeline_stage if is_entry else entry)
        if stages and stage < stages[-1]:
            raise ValueError(
                f"Layer {layer.name!r} has stage {stage}, but the layer before has stage "
                f"{stages[-1]}: stages must not decrease along the model."
            )
        stages.append(stage)
    return tuple(stages)


def plan_stages(
    model: Any, sequential: Sequence[int] | None, device_mapping: Sequence[int] | None
) -> StagePlan | None:
    """Returns the stages of a model; `None` if it has none.

    Args:
        model: Sequential, functional or of a class of its own.
        sequential: the stage of each layer of a Sequential.
        device_mapping: the IPU of each stage; by default its own number.

    Raises:
        ValueError: a call has no stage, or one before that of its inputs; a stage has no call; the
            mapping does not fit.
    """
    stages = _stages(model, sequential)
    if not stages:
        if device_mapping is not None:
            raise ValueError(
                f"device_mapping={list(device_mapping)} was given, but model {model.name!r} has no "
                "stages. Assign them with set_pipeline_stage_assignment or PipelineStage."
            )
        return None
    nodes = nodes_of(graph_of(model))
    _check(model, nodes, stages)
    num_stages = max(stages.values()) + 1
    by_stage = tuple(
        tuple(node for node in nodes if stages[node] == stage) for stage in range(num_stages)
    )
    return StagePlan(by_stage, _ipus(num_stages, device_mapping))


@contextmanager
def stages_in_order(model: Any, plan: StagePlan | None) -> Iterator[None]:
    """Makes a model run its calls stage by stage, each stage in a block."""
    if plan is None:
        yield
        return
    attributes = vars(graph_of(model))  # Behind Keras's tracking of attributes.
    by_depth = attributes["_nodes_by_depth"]
    last = len(plan.nodes)
    attributes["_nodes_by_depth"] = {
        last - stage: _NodesOfStage(stage, plan.ipus[stage], nodes)
        for stage, nodes in enumerate(plan.nodes)
    }
    Block.start("0", plan.ipus[0])  # For what comes before the first call.
    try:
        yield
    finally:
        attributes["_nodes_by_depth"] = by_depth


class _NodesOfStage:
    """Calls in order; who begins with them opens the block of their stage."""

    def __init__(self, stage: int, ipu: int, nodes: Sequence[Any]) -> None:
        self._stage, self._ipu, self._nodes = stage, ipu, nodes

    def __iter__(self) -> Iterator[Any]:
        Block.start(str(self._stage), self._ipu)
        return iter(self._nodes)


def nodes_of(graph: Any) -> list[Any]:
    """Returns the calls of a graph in the order in which Keras runs them."""
    by_depth = graph._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if not node.is_input
    ]


def _stages(model: Any, sequential: Sequence[int] | None) -> dict[Any, int]:
    """Returns the stages that are known; none at all for a model without a pipeline."""
    if sequential is not None:
        sequential_stages(model, sequential)
        stage_of_layer = dict(zip(map(id, model.layers), sequential, strict=True))
        return {node: stage_of_layer[id(node.operation)] for node in nodes_of(graph_of(model))}
    graph = _graph_or_none(model)
    if isinstance(graph, Functional):
        return {node: _stage_of_node[node] for node in nodes_of(graph) if node in _stage_of_node}
    return {}


def _check(model: Any, nodes: Sequence[Any], stages: Mapping[Any, int]) -> None:
    missing = [node.operation.name for node in nodes if node not in stages]
    if missing:
        raise ValueError(
            f"In model {model.name!r} some layer calls have a pipeline stage, but these have none: "
            f"{', '.join(missing)}. Give every call a stage, or call "
            "reset_pipeline_stage_assignment()."
        )
    for node in nodes:
        for parent in node.parent_nodes:
            if parent in stages and stages[parent] > stages[node]:
                raise ValueError(
                    f"Layer {node.operation.name!r} is in pipeline stage {stages[node]}, but takes "
                    f"a result of {parent.operation.name!r} in stage {stages[parent]}: stages must "
                    "not decrease along the model."
                )
    used = set(stages.values())
    unused = sorted(set(range(max(used) + 1)) - used)
    if unused:
        raise ValueError(
            f"No layer of model {model.name!r} is in pipeline stage {unused[0]}, but one is in "
            f"stage {max(used)}. Number the stages from 0 without gaps."
        )


def _ipus(num_stages: int, device_mapping: Sequence[int] | None) -> tuple[int, ...]:
    if device_mapping is None:
        return tuple(range(num_stages))
    if len(device_mapping) != num_stages:
        raise ValueError(
            f"device_mapping has {len(device_mapping)} entries, {list(device_mapping)}, but the "
            f"model has {num_stages} stages. Give the IPU of each stage."
        )
    ipus = list(dict.fromkeys(device_mapping))
    if set(ipus) != set(range(len(ipus))):
        raise ValueError(
            f"device_mapping is {list(device_mapping)}, but the IPUs of a model are numbered from "
            "0 without gaps."
        )
    return tuple(ipus.index(ipu) for ipu in device_mapping)

"""The layer calls of a model, and the contents of the nested models among them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.models.functional import Functional
from keras.src.ops.function import _build_map

from poptorch_emu.keras.stages.call_graph import CallGraph, graph_of_call, traced
from poptorch_emu.keras.stages.stage_marks import (
    Mark,
    Marked,
    Stages,
    mark_of,
    stage_of_construction,
)

_TRACED = "_poptorch_traced"
_STAGES = "_poptorch_stages"


@dataclass(frozen=True)
class Contents:
    """The calls of a model.

    Attributes:
        model: model that makes the calls.
        calls: calls that have stages of their own, in the order of their entries.
        graph: functional model with the calls; `None` if only the layers are known.
        call_graph: origin of `graph`, for a model with its own `call`.
        fault: reason why the calls cannot be in several stages; "" if they can.
    """

    model: Any
    calls: tuple[Call, ...]
    graph: Any
    call_graph: CallGraph | None = None
    fault: str = ""

    @property
    def marks(self) -> Sequence[Marked]:
        """The stages assigned to a Sequential's calls; nodes of other models hold their own."""
        stages = assigned_to(self.model) if isinstance(self.model, keras.Sequential) else None
        return [Mark.UNMARKED] * len(self.calls) if stages is None else stages


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        layer: called layer or operation.
        node: node of Keras's graph; `None` if the outer model is not built.
    """

    layer: Any
    node: Any

    @property
    def mark(self) -> Marked:
        """The stages assigned to the call, or the mark that there are none."""
        if self.node is not None:
            return mark_of(self.node)
        stage = None if isinstance(self.layer, keras.Model) else stage_of_construction(self.layer)
        return Mark.UNMARKED if stage is None else stage

    def inside(self) -> Contents | None:
        """Returns the contents of the called model; `None` if the call is not that of a model.

        Raises:
            Error: a `call` enters stages, and runs other layers in training.
        """
        model, node = self.layer, self.node
        if not isinstance(model, keras.Model):
            return None
        fault = _fault_of_call(self)
        if type(model).call is keras.Sequential.call:
            return _contents_of_sequential(model, fault)
        if type(model).call is Functional.call:
            return Contents(model, _calls_of(model), model, fault=fault)
        if node is None:
            return _layers_alone(model, "the model around it is not built")
        if _TRACED not in vars(node):
            given = {name: x for name, x in node.arguments.kwargs.items() if name != "training"}
            vars(node)[_TRACED] = traced(model, node.arguments.args, given)
        return _contents_of_call(model, vars(node)[_TRACED], fault)


def contents_of(model: Any) -> Contents:
    """Returns the contents of an outermost model.

    Raises:
        Error: `call` of the model enters stages, and runs other layers in training.
    """
    if isinstance(model, keras.Sequential):
        return _contents_of_sequential(model)
    if isinstance(model, Functional):
        return Contents(model, _calls_of(model), model)
    return _contents_of_call(
        model, graph_of_call(model) or CallGraph(None, fault="its inputs are not known")
    )


def assigned_to(model: Any) -> Sequence[Stages] | None:
    """Returns the stages assigned to the layers of a Sequential; `None` if there are none."""
    stages: Sequence[Stages] | None = vars(model).get(_STAGES)
    if stages is not None and len(stages) != len(model.layers):
        raise ValueError(
            f"Model {model.name!r} has {len(model.layers)} layers, but had {len(stages)} when its "
            "pipeline stages were assigned. Call reset_pipeline_stage_assignment(), and assign "
            "them again."
        )
    return stages


def keep_assigned(model: Any, stages: Sequence[Stages] | None) -> None:
    """Assigns stages to the layers of a Sequential; `None` removes them."""
    vars(model)[_STAGES] = stages  # Bypasses Keras's tracking of attributes.


def bound_arguments(model: Any, node: Any) -> dict[str, Any]:
    """Returns the arguments of a model's call, by the names of the parameters."""
    arguments = node.arguments
    bound = inspect.signature(type(model).call).bind(model, *arguments.args, **arguments.kwargs)
    return bound.arguments


def _fault_of_call(call: Call) -> str:
    if call.layer.activity_regularizer is not None:
        return "it has an activity_regularizer"
    has_graph = type(call.layer).call in (keras.Sequential.call, Functional.call)
    if call.node is not None and has_graph and bound_arguments(call.layer, call.node).get("kwargs"):
        return "it is called with arguments that Keras does not know"
    return ""


def _contents_of_sequential(model: Any, fault: str = "") -> Contents:
    graph = model._functional
    if not isinstance(graph, Functional):
        return _layers_alone(model, "it is not built, or has no graph of layers")
    node_of = {id(node.operation): node for node in _build_map(graph._inputs, graph._outputs)[0]}
    calls = [Call(layer, node_of[id(layer)]) for layer in model.layers]
    return Contents(model, tuple(calls), graph, fault=fault)


def _contents_of_call(model: Any, found: CallGraph, fault: str = "") -> Contents:
    if found.graph is None:
        return _layers_alone(model, found.fault)
    return Contents(model, _calls_of(found.graph), found.graph, found, found.fault or fault)


def _layers_alone(model: Any, fault: str) -> Contents:
    return Contents(model, tuple(Call(layer, None) for layer in model.layers), None, None, fault)


def _calls_of(graph: Any) -> tuple[Call, ...]:
    """Returns the calls of a graph in post-order: each call after those whose results it uses."""
    nodes = _build_map(graph._inputs, graph._outputs)[0]
    return tuple(Call(node.operation, node) for node in nodes if not node.is_input)

"""The graph of a model as one list of layer calls, with the calls of nested models in place.

A nested model in one stage is called as a whole. A nested model in several stages is a *frame*: its
calls are in the list, and its inputs and outputs are other names for tensors of the outer graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from poptorch_emu.keras.stages.call_graph import nodes_of
from poptorch_emu.keras.stages.model_contents import Call, Contents, bound_arguments
from poptorch_emu.keras.stages.stage_assignment import numbers_of, undivided, unfolded
from poptorch_emu.keras.stages.stage_marks import Stages, any_stages


@dataclass(eq=False)
class Frame:
    """One run of a graph within the run of the whole model.

    Attributes:
        contents: contents of the model.
        name: path of the model, from the outermost model on; "" for the outermost model.
        outer: frame of the graph that calls the model; `None` for the outermost model.
        node: call of the model in the outer frame.
        given: argument of the call for each input: a tensor of the outer graph, or a constant.
        masks: argument of the call for the mask of each input.
        inner: frames of the nested models that are divided, by their calls.
    """

    contents: Contents
    name: str = ""
    outer: Frame | None = None
    node: Any = None
    given: Sequence[Any] = ()
    masks: Sequence[Any] = ()
    inner: dict[Any, Frame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Records the origin of each tensor."""
        graph = self.contents.graph
        self._inputs = {id(tensor): i for i, tensor in enumerate(graph._inputs)}
        self._made = {
            id(tensor): (node, i)
            for node in nodes_of(graph)
            for i, tensor in enumerate(node.outputs)
        }

    @property
    def outermost(self) -> Frame:
        """Frame of the outermost model."""
        return self if self.outer is None else self.outer.outermost

    def input_number(self, tensor: Any) -> int | None:
        """Returns the index of the input that a tensor is; `None` if it is not an input."""
        return self._inputs.get(id(tensor))

    def source(self, tensor: Any) -> tuple[Any, int]:
        """Returns (call, index of the result) for the origin of a tensor."""
        return self._made[id(tensor)]

    def result(self, number: int) -> Any:
        """Returns the tensor of the result with the given index."""
        return self.contents.graph._outputs[number]

    def first_argument(self) -> Any:
        """Returns the nested call's first argument, whose masks pass on to the results."""
        arguments = self.node.arguments
        return arguments.args[0] if arguments.args else next(iter(arguments.kwargs.values()))


@dataclass(frozen=True, eq=False)
class StagedCall:
    """A call of a layer, or of a nested model that is in one stage.

    Attributes:
        frame: frame of the graph with the call.
        node: node of the call.
        stage: stage of the call; `None` if it has none.
    """

    frame: Frame
    node: Any
    stage: int | None

    @property
    def name(self) -> str:
        """Name of the layer, after those of the models around it."""
        return self.frame.name + str(self.node.operation.name)


def inlined(contents: Contents, stages: Sequence[Stages]) -> list[StagedCall]:
    """Returns the calls of a model in an order that can be executed.

    Raises:
        ValueError: a nested model cannot be divided into several stages.
    """
    return list(_calls(Frame(contents), stages))


def makers(frame: Frame, tensor: Any) -> set[tuple[Frame, Any]]:
    """Returns the (frame, node) of all calls that must run before a tensor is known."""
    number = frame.input_number(tensor)
    if number is not None:
        if frame.outer is None:
            return set()
        return _makers_of(frame.outer, (frame.given[number], frame.masks[number]))
    node, number = frame.source(tensor)
    if node not in frame.inner:
        return {(frame, node)}
    inner = frame.inner[node]
    found = makers(inner, inner.result(number))
    if inner.contents.model.supports_masking:
        found |= _makers_of(frame, inner.first_argument())
    return found


def _makers_of(frame: Frame, structure: Any) -> set[tuple[Frame, Any]]:
    found: set[tuple[Frame, Any]] = set()
    for leaf in keras.tree.flatten(structure):
        if isinstance(leaf, keras.KerasTensor):
            found |= makers(frame, leaf)
    return found


def _calls(frame: Frame, stages: Sequence[Stages]) -> Iterator[StagedCall]:
    contents = frame.contents
    said = {call.node: (call, each) for call, each in zip(contents.calls, stages, strict=True)}
    highest = min((number for each in stages for number in numbers_of(each)), default=None)
    for node in nodes_of(contents.graph):
        # A Sequential has stages for its layers only, although its graph may compute masks as well.
        call, each = said.get(node, (Call(node.operation, node), highest))
        highest = max(numbers_of(each), default=highest)
        inside = call.inside() if isinstance(each, tuple) or _enters_stages(call) else None
        if inside is None:
            assert not isinstance(each, tuple), "a layer has one stage"
            yield StagedCall(frame, node, each)
            continue
        if inside.fault:
            raise undivided(frame.name + call.layer.name, inside, each)
        inner = frame.inner[node] = _frame(inside, frame, node)
        yield from _calls(inner, unfolded(each, inside))


def _enters_stages(call: Call) -> bool:
    """Returns whether a model's call in one stage must be divided, because it enters stages."""
    if not any_stages() or not isinstance(call.layer, keras.Model):
        return False
    inside = call.inside()
    assert inside is not None, "it is a model"
    if inside.call_graph is not None and inside.call_graph.enters_stages:
        return True
    return any(map(_enters_stages, inside.calls))


def _frame(inside: Contents, outer: Frame, node: Any) -> Frame:
    name = f"{outer.name}{node.operation.name}/"
    if inside.call_graph is not None:
        given: Sequence[Any] = inside.call_graph.tensors
        return Frame(inside, name, outer, node, given, [None] * len(given))
    arguments = bound_arguments(inside.model, node)
    inputs, graph = arguments["inputs"], inside.graph
    if isinstance(inputs, dict) and not isinstance(graph._inputs_struct, dict):
        inputs = [inputs[tensor.name] for tensor in graph._inputs]
    given = keras.tree.flatten(inputs)
    mask = arguments.get("mask")
    masks = [None] * len(given) if mask is None else keras.tree.flatten(mask)
    return Frame(inside, name, outer, node, given, masks)

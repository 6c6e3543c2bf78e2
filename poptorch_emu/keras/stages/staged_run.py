"""Runs a model stage by stage, with each stage in a block, and nested models in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src.backend import get_keras_mask, set_keras_mask

from poptorch_emu.keras.stages.call_graph import is_of_own_class
from poptorch_emu.keras.stages.inlined_graph import Frame, StagedCall
from poptorch_emu.keras.stages.model_contents import contents_of
from poptorch_emu.keras.stages.stage_plan import StagePlan
from poptorch_emu.ops.block_annotations import Block

_RUN = "_run_through_graph"


def call_by_stages(model: Any, plan: StagePlan | None, x: Any, **mode: bool) -> Any:
    """Calls a model, and makes it run its calls by the plan, if there is one.

    Args:
        model: Keras model.
        plan: stages of the model; `None` if it has none.
        x: input of the model.
        mode: `training`, if the model takes it.
    """
    if plan is None:
        return model(x, **mode)
    graph = contents_of(model).graph
    with _runs_by_stages(graph, plan, mode.get("training")):
        if is_of_own_class(model):
            return graph(keras.tree.flatten(x), **mode)
        return model(x, **mode)


@contextmanager
def _runs_by_stages(graph: Any, plan: StagePlan, training: bool | None) -> Iterator[None]:
    def run(inputs: Any, **_: Any) -> Any:
        values = keras.tree.flatten(inputs)
        return _Run(plan, values, training).outputs(graph)

    vars(graph)[_RUN] = run  # Bypasses Keras's tracking of attributes.
    Block.start("0", plan.ipus[0])  # Block of the operations before the first call.
    try:
        yield
    finally:
        del vars(graph)[_RUN]


class _Run:
    """The values of one run, by (frame, tensor)."""

    def __init__(self, plan: StagePlan, inputs: list[Any], training: bool | None) -> None:
        self._plan, self._inputs, self._training = plan, inputs, training
        self._values: dict[tuple[Frame, int], Any] = {}
        self._masks: dict[tuple[Frame, int], Any] = {}  # Masks of the values given as inputs.

    def outputs(self, graph: Any) -> Any:
        for stage, calls in enumerate(self._plan.calls):
            Block.start(str(stage), self._plan.ipus[stage])
            for call in calls:
                self._make(call)
        outermost = self._plan.calls[0][0].frame.outermost
        outputs = [self._value(outermost, tensor) for tensor in graph._outputs]
        return keras.tree.pack_sequence_as(graph._outputs_struct, outputs)

    def _make(self, call: StagedCall) -> None:
        frame, node = call.frame, call.node
        tensors = node.arguments.keras_tensors
        args, kwargs = node.arguments.fill_in({id(x): self._value(frame, x) for x in tensors})
        if isinstance(node.operation, keras.Layer):
            mode = self._mode(frame, node)
            kwargs = {name: x for name, x in kwargs.items() if name != "training"}
            kwargs |= {} if mode is None else {"training": mode}
        results = keras.tree.flatten(node.operation(*args, **kwargs))
        for tensor, value in zip(node.outputs, results, strict=False):
            self._values[frame, id(tensor)] = value

    def _mode(self, frame: Frame, node: Any) -> bool | None:
        """Returns whether a call is in training, by Keras's rules; `None` if it is undetermined."""
        said = node.arguments.kwargs.get("training")
        found = frame.contents.call_graph
        if found is not None and node in found.fixed:
            return said  # type: ignore[no-any-return]
        outer = self._training if frame.outer is None else self._mode(frame.outer, frame.node)
        return said if outer is None and found is None else outer

    def _value(self, frame: Frame, tensor: Any) -> Any:
        key = frame, id(tensor)
        if key not in self._values:
            number = frame.input_number(tensor)
            self._values[key] = (
                self._result(frame, tensor) if number is None else self._input(frame, number)
            )
        return self._values[key]

    def _filled(self, frame: Frame, structure: Any) -> Any:
        return keras.tree.map_structure(
            lambda x: self._value(frame, x) if isinstance(x, keras.KerasTensor) else x, structure
        )

    def _input(self, frame: Frame, number: int) -> Any:
        """Returns an input of a model after the conversions that Keras makes in a call."""
        if frame.outer is None:
            return self._inputs[number]
        value, mask = self._filled(frame.outer, (frame.given[number], frame.masks[number]))
        if value is None:
            return None
        model, graph = frame.contents.model, frame.contents.graph
        before = self._masks[frame, number] = get_keras_mask(value)
        if model._convert_input_args:
            value = model.dtype_policy.convert_input(value, model.autocast, model.input_dtype)
        if frame.contents.call_graph is None:
            value = _of_form(value, graph._inputs[number])
        mask = before if mask is None else mask
        if mask is not None:
            set_keras_mask(value, mask)
        return value

    def _result(self, frame: Frame, tensor: Any) -> Any:
        """Returns a result of a divided model."""
        node, number = frame.source(tensor)
        inner = frame.inner[node]
        value = self._value(inner, inner.result(number))
        if inner.contents.model.supports_masking and get_keras_mask(value) is None:
            self._set_mask(frame, inner, number, value)
        return value

    def _set_mask(self, frame: Frame, inner: Frame, number: int, value: Any) -> None:
        model, first = inner.contents.model, inner.first_argument()
        given = self._filled(frame, first)
        previous = self._filled(frame, inner.node.arguments.kwargs.get("mask"))
        if previous is None:
            previous = keras.tree.map_structure(lambda x: self._mask_of(inner, x), first)
        masks = model.compute_mask(given, previous)
        mask = None if masks is None else keras.tree.flatten(masks)[number]
        if mask is not None:
            set_keras_mask(value, mask)

    def _mask_of(self, inner: Frame, tensor: Any) -> Any:
        """Returns the mask of a model's input tensor, which the model may have removed."""
        for number, given in enumerate(inner.given):
            if given is tensor:
                self._value(inner, inner.contents.graph._inputs[number])
                return self._masks.get((inner, number))
        return None


def _of_form(value: Any, tensor: Any) -> Any:
    """Returns a value converted to the type and the rank of a graph's input."""
    value = keras.ops.convert_to_tensor(value, dtype=tensor.dtype)
    rank, wanted = len(value.shape), len(tensor.shape)
    if rank == wanted + 1 and value.shape[-1] == 1:
        return keras.ops.squeeze(value, axis=-1)
    if rank == wanted - 1 and tensor.shape[-1] == 1:
        return keras.ops.expand_dims(value, axis=-1)
    return value

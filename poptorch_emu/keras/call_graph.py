"""The graph of layers of a `call` that users wrote: it is run on symbolic tensors.

The graph that Keras makes of it is what stages belong to, and what runs. What a `call` does beside
calling layers and operations is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras.src.models.functional import Functional

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.stage_marks import noted_stages

_FORM = "_poptorch_form_of_inputs"
_CALL_GRAPH = "_poptorch_call_graph"


@dataclass(frozen=True)
class InputForm:
    """What one input looks like: its shape without the batch, and its type."""

    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class CallGraph:
    """What a `call` does.

    Attributes:
        graph: the functional model; `None` if there is none.
        tensors: the symbolic tensors that the call was given, in the order of the graph's inputs.
        fixed: the nodes for which the call itself decides whether they are in training.
        enters_stages: whether the call enters stages.
        fault: why the graph is not all that the call does; empty if it is.
    """

    graph: Any
    tensors: tuple[Any, ...] = ()
    fixed: frozenset[Any] = frozenset()
    enters_stages: bool = False
    fault: str = ""


def is_of_own_class(model: Any) -> bool:
    """Returns whether a model has no graph of layers by itself."""
    return not isinstance(model, (keras.Sequential, Functional))


def note_inputs(model: Any, x: Any) -> None:
    """Notes what the inputs of a model look like, from arrays or from a data set of TensorFlow."""
    if _FORM in vars(model) or x is None or not is_of_own_class(model):
        return
    spec = getattr(x, "element_spec", None)
    if spec is not None:
        x = spec[0] if isinstance(spec, tuple) else spec
    leaves = keras.tree.flatten(x)
    if all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        vars(model)[_FORM] = keras.tree.map_structure(_form_of, x)


def graph_of_call(model: Any) -> CallGraph | None:
    """Returns the graph of a model of a class of its own; `None` of any other.

    It is `None`, too, as long as the inputs of the model are not known.

    Raises:
        Error: `call` enters stages, and runs other layers in training.
    """
    attributes = vars(model)
    if not is_of_own_class(model):
        return None
    shapes = list((attributes.get("_build_shapes_dict") or {}).values())
    if _FORM not in attributes and len(shapes) == 1 and isinstance(shapes[0], (tuple, list)):
        attributes[_FORM] = InputForm(tuple(shapes[0][1:]), keras.config.floatx())
    if _FORM in attributes and _CALL_GRAPH not in attributes:
        inputs = keras.tree.map_structure(
            lambda each: keras.KerasTensor((None, *each.shape), dtype=each.dtype), attributes[_FORM]
        )
        attributes[_CALL_GRAPH] = traced(model, (inputs,), {})
    found: CallGraph | None = attributes.get(_CALL_GRAPH)
    return found


def traced(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallGraph:
    """Returns what the `call` of a model does with symbolic tensors like these.

    Raises:
        Error: it enters stages, and runs other layers in training.
    """
    runs: list[CallGraph] = []
    for training in (True, False):
        with noted_stages() as stages:
            try:
                runs.append(_run(model, args, kwargs, training))
            except Exception as error:
                if stages:
                    raise
                lines = str(error).splitlines() or [type(error).__name__]
                return CallGraph(None, fault=f"it cannot be run on symbolic tensors ({lines[0]})")
    first, last = (nodes_of(each.graph) for each in runs)
    name, enters_stages = type(model).__name__, bool(stages)
    if [_signature(node) for node in first] != [_signature(node) for node in last]:
        if enters_stages:
            raise compiler_error(
                f"The call() of {name} opens pipeline stages, and runs other layers if training is "
                "True. Let its layers depend on training, but not call()."
            )
        return CallGraph(None, fault="it runs other layers if training is True")
    fixed = [
        node
        for other, node in zip(first, last, strict=True)
        if _mode(node) is not None and _mode(node) == _mode(other)
    ]
    return replace(runs[1], fixed=frozenset(fixed), enters_stages=enters_stages)


def nodes_of(graph: Any) -> list[Any]:
    """Returns the calls of a graph in the order in which Keras runs them."""
    by_depth = graph._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if not node.is_input
    ]


def _form_of(leaf: Any) -> InputForm:
    kind = keras.backend.standardize_dtype(getattr(leaf.dtype, "name", leaf.dtype))
    return InputForm(tuple(leaf.shape[1:]), keras.config.floatx() if "float" in kind else kind)


def _signature(node: Any) -> tuple[Any, ...]:
    """Returns what is called, and the numbers and words that it is given.

    Of operations that are no layers, which are made anew each time, it is the class.
    """
    operation = node.operation
    given = {name: x for name, x in node.arguments.kwargs.items() if name != "training"}
    leaves = keras.tree.flatten((node.arguments.args, given))
    values = [leaf for leaf in leaves if isinstance(leaf, bool | int | float | str)]
    return (operation if isinstance(operation, keras.Layer) else type(operation), values)


def _mode(node: Any) -> Any:
    return node.arguments.kwargs.get("training")


def _run(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> CallGraph:
    given: dict[int, tuple[Any, Any]] = {}

    def input_of(leaf: Any) -> Any:
        if not isinstance(leaf, keras.KerasTensor):
            return leaf
        kind = leaf.dtype
        if model.dtype_policy._should_cast(leaf, model.autocast, model.input_dtype):
            kind = model.input_dtype
        if id(leaf) not in given:
            given[id(leaf)] = (leaf, keras.Input(batch_shape=leaf.shape, dtype=kind))
        return given[id(leaf)][1]

    args, kwargs = keras.tree.map_structure(input_of, (tuple(args), dict(kwargs)))
    mode = {"training": training} if model._call_has_training_arg else {}
    with _Forgetting() as forgetting, _in_mode(model, training):
        outputs = type(model).call(model, *args, **kwargs, **mode)
    inputs = [each for _, each in given.values()]
    graph = Functional(inputs, outputs, name=f"{model.name}_call")
    return CallGraph(graph, tuple(each for each, _ in given.values()), fault=forgetting.fault())


class _Forgetting(keras.StatelessScope):  # type: ignore[misc]
    """Forgets what a `call` assigns to variables and adds to the losses, but not that it does."""

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self._assigned: list[str] = []

    def add_update(self, update: tuple[Any, Any]) -> None:
        super().add_update(update)
        self._assigned.append(update[0].path)

    def fault(self) -> str:
        if self._assigned:
            return f"it assigns to variable {self._assigned[0]!r}, or draws random numbers by it"
        return "it calls add_loss" if self.losses else ""


@contextmanager
def _in_mode(model: Any, training: bool) -> Iterator[None]:
    """Makes layers inherit the mode as if the model were called."""
    model._get_call_context().set_value("training", training)
    try:
        yield
    finally:
        model._maybe_reset_call_context()

"""The graph of layers in a user's own `call`, found by running it on symbolic tensors.

Keras records this graph. The graph is divided into stages and then runs in place of `call`, so any
other effect of `call` would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras.src.models.functional import Functional

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.stages.stage_marks import noted_stages

_FORM = "_poptorch_form_of_inputs"
_CALL_GRAPH = "_poptorch_call_graph"


@dataclass(frozen=True)
class CallGraph:
    """The graph of a `call`, and whether it is complete.

    Attributes:
        graph: functional model of the calls; `None` if there is none.
        tensors: symbolic tensors that `call` received, in the order of the graph's inputs.
        fixed: nodes whose `training` argument does not depend on the mode of the model.
        enters_stages: whether the call enters stages.
        fault: reason why the graph is not all that the call does; "" if it is.
    """

    graph: Any
    tensors: tuple[Any, ...] = ()
    fixed: frozenset[Any] = frozenset()
    enters_stages: bool = False
    fault: str = ""


def is_of_own_class(model: Any) -> bool:
    """Returns whether a model is neither a Sequential nor functional, so that it has no graph."""
    return not isinstance(model, (keras.Sequential, Functional))


def note_inputs(model: Any, x: Any) -> None:
    """Records the forms of a model's inputs, from arrays or from a data set of TensorFlow.

    A Sequential that is not built is built for them, since its stages belong to its graph.
    """
    form = None if _FORM in vars(model) else form_of_inputs(x)
    if form is None:
        return
    if is_of_own_class(model):
        vars(model)[_FORM] = form
    elif (
        isinstance(model, keras.Sequential)
        and not model.built
        and isinstance(form, keras.KerasTensor)
    ):
        model.build(form.shape)


def form_of_inputs(x: Any) -> Any:
    """Returns a structure with a symbolic tensor for each input; `None` if they are not known."""
    spec = getattr(x, "element_spec", None)
    if spec is not None:
        x = spec[0] if isinstance(spec, tuple) else spec
    leaves = keras.tree.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return None
    return keras.tree.map_structure(_form_of, x)


def graph_of_call(model: Any) -> CallGraph | None:
    """Returns the graph of a model with its own class; `None` for other models.

    The result is also `None` as long as the forms of the inputs are unknown.

    Raises:
        Error: `call` enters stages, and runs other layers in training.
    """
    attributes = vars(model)
    if not is_of_own_class(model):
        return None
    shapes = list((attributes.get("_build_shapes_dict") or {}).values())
    if _FORM not in attributes and len(shapes) == 1 and isinstance(shapes[0], (tuple, list)):
        attributes[_FORM] = keras.KerasTensor((None, *shapes[0][1:]), keras.config.floatx())
    if _FORM in attributes and _CALL_GRAPH not in attributes:
        attributes[_CALL_GRAPH] = traced(model, (attributes[_FORM],), {})
    found: CallGraph | None = attributes.get(_CALL_GRAPH)
    return found


def traced(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallGraph:
    """Returns the graph of a model's `call` on symbolic tensors with the given forms.

    Raises:
        Error: `call` enters stages, and runs other layers in training.
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
    """Returns the calls of a graph in Keras's order of execution."""
    by_depth = graph._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if not node.is_input
    ]


def _form_of(leaf: Any) -> Any:
    kind = keras.backend.standardize_dtype(getattr(leaf.dtype, "name", leaf.dtype))
    kind = keras.config.floatx() if "float" in kind else kind
    return keras.KerasTensor((None, *leaf.shape[1:]), kind)


def _signature(node: Any) -> tuple[Any, ...]:
    """Returns the called layer, and the numbers and strings among its arguments.

    Operations that are not layers are new objects in each run, so their class is returned.
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
    """Discards assignments to variables and added losses of a `call`, but notes their existence."""

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
    """Lets layers inherit the training mode, as in a call of the model by Keras."""
    model._get_call_context().set_value("training", training)
    try:
        yield
    finally:
        model._maybe_reset_call_context()

"""Models of a class of their own whose `call` opens pipeline stages: their graph of layers.

`call` is run once on symbolic tensors. The graph that Keras makes of it is what the stages belong
to, and what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras.src.models.functional import Functional

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.stage_assignment import CALL_GRAPH, nodes_of, noted_stages

_FORM = "_poptorch_form_of_inputs"


@dataclass(frozen=True)
class InputForm:
    """What one input looks like: its shape without the batch, and its type."""

    shape: tuple[int | None, ...]
    dtype: str


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


def graph_of_call(model: Any) -> Any:
    """Returns the graph of a model whose `call` opens stages; `None` of any other.

    It is `None`, too, as long as the inputs of the model are not known.

    Raises:
        Error: `call` runs other layers in training.
    """
    attributes = vars(model)
    if not is_of_own_class(model):
        return None
    shapes = list((attributes.get("_build_shapes_dict") or {}).values())
    if _FORM not in attributes and len(shapes) == 1 and isinstance(shapes[0], (tuple, list)):
        attributes[_FORM] = InputForm(tuple(shapes[0][1:]), keras.config.floatx())
    if _FORM in attributes and CALL_GRAPH not in attributes:
        attributes[CALL_GRAPH] = _made(model, attributes[_FORM])
    return attributes.get(CALL_GRAPH)


def _form_of(leaf: Any) -> InputForm:
    kind = keras.backend.standardize_dtype(getattr(leaf.dtype, "name", leaf.dtype))
    return InputForm(tuple(leaf.shape[1:]), keras.config.floatx() if "float" in kind else kind)


def _kind_of(operation: Any) -> Any:
    """Returns a layer itself, and of other operations, which are made anew each time, the class."""
    return operation if isinstance(operation, keras.Layer) else type(operation)


def _made(model: Any, form: Any) -> Any:
    # `None` leaves it to the call of the graph.
    flags = [{"training": each} for each in (True, None)] if model._call_has_training_arg else [{}]
    layers, graph = [], None
    for flag in flags:
        # What call() assigns to variables is forgotten.
        with noted_stages() as stages, keras.StatelessScope():
            inputs = keras.tree.map_structure(
                lambda each: keras.Input(each.shape, dtype=each.dtype), form
            )
            try:
                outputs = type(model).call(model, inputs, **flag)
            except Exception:
                if stages:
                    raise
        if not stages:
            return None
        graph = Functional(inputs, outputs, name=f"{model.name}_call")
        layers.append([_kind_of(node.operation) for node in nodes_of(graph)])
    if layers[0] != layers[-1]:
        raise compiler_error(
            f"The call() of {type(model).__name__} opens pipeline stages, and runs other layers if "
            "training is True. Let its layers depend on training, but not call()."
        )
    return graph

"""Forms of results that Keras's functions have on TensorFlow, but not on PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_FUNCTIONS = ("keras.src.ops.", "keras.src.utils.")


def as_on_tensorflow(function: Callable[..., Any], given: Any, found: Any) -> Any:
    """Returns a result of a function in the form and type that it has on TensorFlow.

    Args:
        function: function of Keras.
        given: its arguments: a tuple, and a dictionary.
        found: its result, with tensors of TensorFlow.
    """
    form = _FORMS.get(function.__name__)
    if form is None or not function.__module__.startswith(_FUNCTIONS):
        return found
    return form(found, *given)


def _listed(found: Any, args: Any, kwargs: Any) -> Any:
    return list(found)


def _in_a_tuple(found: Any, args: Any, kwargs: Any) -> Any:
    return tuple(found) if isinstance(found, tuple) else found


def _narrow(found: Any, args: Any, kwargs: Any) -> Any:
    return tf.cast(found, tf.int32)


def _with_narrow_indices(found: Any, args: Any, kwargs: Any) -> Any:
    return type(found)((found[0], tf.cast(found[1], tf.int32)))


def _narrow_unless_given_wide(found: Any, args: Any, kwargs: Any) -> Any:
    types = [getattr(leaf, "dtype", None) for leaf in keras.tree.flatten((args, kwargs))]
    is_wide = any(each is not None and tf.as_dtype(each) == tf.int64 for each in types)
    return found if is_wide or found.dtype != tf.int64 else tf.cast(found, tf.int32)


def _places(found: Any, args: Any, kwargs: Any) -> Any:
    """Returns the indices of each axis in a vector of its own."""
    is_of_values = len(args) + len(kwargs) > 1  # keras.ops.where(condition, x, y)
    return found if is_of_values else tf.unstack(tf.cast(found, tf.int32))


def _with_step_as_tensor(found: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(found, tuple):
        return found
    return found[0], tf.convert_to_tensor(found[1], found[0].dtype)


def _floating(found: Any, args: Any, kwargs: Any) -> Any:
    return tf.cast(found, keras.config.floatx()) if tf.is_tensor(found) else found


_FORMS: dict[str, Callable[..., Any]] = {
    "einsum": _narrow_unless_given_wide,
    "eigh": _in_a_tuple,
    "linspace": _with_step_as_tensor,
    "meshgrid": _listed,
    "nonzero": _places,
    "size": _narrow,
    "svd": _in_a_tuple,
    "to_categorical": _floating,
    "top_k": _with_narrow_indices,
    "unstack": _listed,
    "where": _places,
}

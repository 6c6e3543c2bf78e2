"""Checks of operator attributes, and scopes that attach attributes to operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poptorch_emu.errors import compiler_error

# Source: the largest finite float32.
_FLOAT32_MAX = 3.4028234663852886e38


def check_attributes(attributes: Mapping[Any, Any]) -> None:
    """Checks the attributes of a custom operator.

    Raises:
        ValueError: a key is not a string, or a value is not a number, a string or a list of one
            type.
        Error: a float does not fit in 32 bits.
    """
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"All attribute keys must be strings. {key!r} is {type(key)}.")
        _check_ascii(key)
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            _check_value(key, item)
        if len({type(item) for item in items}) > 1:
            raise ValueError(
                f"The types in a list/tuple attribute must all be the same. {key!r} is {value!r}."
            )


def _check_value(key: str, value: Any) -> None:
    if not isinstance(value, (float, int, str)):
        raise ValueError(
            "Attribute values must be floats, ints, strings, or lists or tuples of one of them. "
            f"{key!r} is {value!r}."
        )
    if isinstance(value, str):
        _check_ascii(value)
    if isinstance(value, float) and abs(value) > _FLOAT32_MAX:
        limit = "high" if value > 0 else "low"
        raise compiler_error(
            f"{value} is too {limit} for a Popart float attribute. {key!r} must fit in 32 bits."
        )


def _check_ascii(text: str) -> None:
    if not text.isascii():
        raise ValueError(f"{text} contains non-ASCII characters.")

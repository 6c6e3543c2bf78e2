"""Replaces functions of Keras and TensorFlow by functions that receive the original one first."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def replace_functions(owner: Any, **functions: Callable[..., Any]) -> None:
    """Replaces functions of a module, or methods of a class, for the rest of the process.

    Args:
        owner: module or class.
        functions: replacements by name. Each is called with the original function, followed by the
            arguments of the call.
    """
    for name, function in functions.items():
        setattr(owner, name, _around(getattr(owner, name), function))


@contextmanager
def replaced_functions(owner: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Replaces functions as `replace_functions` does, during a context and in all threads."""
    before = {name: getattr(owner, name) for name in functions}
    replace_functions(owner, **functions)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


def _around(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    with suppress(TypeError, ValueError):  # Keras looks at the names of parameters.
        call.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return call

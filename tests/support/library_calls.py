"""Functions of tests that call Keras as libraries do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def as_library(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gets PyTorch's tensors from Keras, also when TensorFlow is loaded.

    Keras gives TensorFlow's tensors only to programs. A caller's module tells them from libraries.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        names = {**function.__globals__, "__name__": "torch.of_a_test"}
        own = FunctionType(function.__code__, names, closure=function.__closure__)
        own.__defaults__, own.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return own(*args, **kwargs)

    return call

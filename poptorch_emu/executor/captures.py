"""Keeps wrapped models out of programs that PyTorch captures, because a call is no operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar

import torch

from poptorch_emu.errors import make_error
from poptorch_emu.torch_versions import (
    DisableTorchFunction,
    disable_current_modes,
    has_capturing_mode,
    has_functorch_transform,
    is_jit_tracing,
    leave_uncompiled,
    without_functorch_transforms,
    without_jit_tracing,
)
from poptorch_emu.trace.places.blocks import check_not_tracing
from poptorch_emu.trace.places.source_line import user_source

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Makes `torch.compile` call a function uncompiled."""
    assert isinstance(function, FunctionType), f"{function} has no code of its own"
    leave_uncompiled(function)
    return function


def uncompiled_methods(own_class: type[T]) -> type[T]:
    """Applies `uncompiled` to all methods that a class defines."""
    for member in vars(own_class).values():
        if isinstance(member, FunctionType):
            uncompiled(member)
    return own_class


@contextmanager
def outside_of_captures() -> Iterator[None]:
    """Makes operations run although somebody records or transforms what this thread does."""
    with (
        without_functorch_transforms(),
        without_jit_tracing(),
        disable_current_modes(),
        DisableTorchFunction(),
        torch.inference_mode(False),
    ):
        yield


def check_not_captured() -> None:
    """Checks that PyTorch is not capturing the call of a wrapped model.

    Raises:
        Error: the captured program would not contain the call, or its tensors have no values.
    """
    check_not_tracing()
    doing = None
    if is_jit_tracing():
        doing = "torch.jit.trace records a program"
    elif has_functorch_transform():
        doing = "torch.func transforms a function"
    elif has_capturing_mode():
        doing = "torch.export or make_fx records a program"
    if doing is not None:
        raise make_error(
            f"A wrapped model was called at {user_source()} while {doing}, which cannot contain "
            "the call, because it is not an operation of PyTorch. Use the user's module there "
            "(the attribute `model` of the wrapper), or call the wrapper outside."
        )

"""Tensor subclasses that libraries make inside of `forward`, for example for states or flags.

PyTorch makes an instance from a tensor as a new Python object with the same memory. A fake tensor
already is a Python object, so here it gets a class that derives from both classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from poptorch_emu.torch_versions import (
    DisableTorchFunctionSubclass,
    FakeTensor,
    disable_current_modes,
    make_subclass,
    pytree,
)
from poptorch_emu.trace.pytorch.patches import patched

_as_subclass = torch.Tensor.as_subclass
_classes: dict[type, type] = {}
_new: Callable[..., Any] = torch.Tensor.__new__


@contextmanager
def made_in_forward() -> Iterator[None]:
    """Allows fake tensors as the data of tensor subclasses."""
    with patched(
        torch.Tensor,
        __new__=staticmethod(_made_new),
        _make_subclass=staticmethod(_made_of),
        as_subclass=_seen_as,
    ):
        yield


class _KeepsClass:
    """Converts results of operations to the class that `Tensor` would choose."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in get_default_nowrap_functions():
            return result
        return pytree.tree_map_only(FakeTensor, lambda value: _with_class(value, cls), result)


def _joined(cls: type) -> type:
    """Returns a class of fake tensors that derives from `cls`."""
    if cls not in _classes:
        bases = (cls, _KeepsClass, FakeTensor)
        _classes[cls] = type(cls.__name__, bases, {"__module__": cls.__module__})
    return _classes[cls]


def _with_class(value: torch.Tensor, cls: type) -> torch.Tensor:
    value.__class__ = cls
    return value


def _is_made_of_stand_in(cls: type, data: Any) -> bool:
    return isinstance(data, FakeTensor) and not issubclass(cls, (FakeTensor, torch.nn.Parameter))


def _made_new(cls: type, *args: Any, **kwargs: Any) -> Any:
    """Replaces `torch.Tensor.__new__`."""
    if cls is torch.Tensor or issubclass(cls, FakeTensor):
        return _new(cls, *args, **kwargs)
    if args and isinstance(args[0], FakeTensor):
        return _with_class(args[0].view_as(args[0]), _joined(cls))
    with disable_current_modes():
        return _new(cls, *args, **kwargs)


def _made_of(cls: type, data: Any, require_grad: bool = False, **kwargs: Any) -> Any:
    """Replaces `torch.Tensor._make_subclass`."""
    if not _is_made_of_stand_in(cls, data):
        return make_subclass(cls, data, require_grad, **kwargs)
    return _with_class(data.detach().requires_grad_(require_grad), _joined(cls))


def _seen_as(tensor: torch.Tensor, cls: type) -> Any:
    """Replaces `torch.Tensor.as_subclass`."""
    if not isinstance(tensor, FakeTensor):
        return _as_subclass(tensor, cls)
    if cls is torch.Tensor:
        return _with_class(tensor.view_as(tensor), FakeTensor)
    return _with_class(tensor.view_as(tensor), cls if issubclass(cls, FakeTensor) else _joined(cls))

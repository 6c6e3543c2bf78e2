"""Finds what an operation makes of fake arguments, quickly where they are dense and on the IPU.

The form of a result is remembered, so that layers that are alike are worked out once; PyTorch has
such a memory too, but looks at far more than is needed here. What is not simple is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._mode_utils import no_dispatch

aten = torch.ops.aten

# Views that PyTorch's own kernel for meta tensors makes, without rules in Python in between.
_VIEWS = frozenset(
    {
        aten._reshape_alias.default,
        aten.alias.default,
        aten.as_strided.default,
        aten.detach.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.squeeze.dim,
        aten.t.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
    }
)

_LITERALS = frozenset(
    {
        bool,
        int,
        float,
        str,
        type(None),
        torch.device,
        torch.dtype,
        torch.layout,
        torch.memory_format,
    }
)
_UNPREDICTABLE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)


class _NotSimpleError(Exception):
    """An argument or a result is not a dense tensor on the IPU, nor a literal."""


@dataclass(frozen=True)
class _Result:
    """The form of one result that has memory of its own."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    def make(self, mode: FakeTensorMode, device: torch.device) -> FakeTensor:
        """Returns a new fake tensor of this form."""
        with no_dispatch():
            like = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return FakeTensor(mode, like, device)


class ResultMemo:
    """What was found out in one trace."""

    def __init__(self, device: torch.device) -> None:
        """Remembers results on `device`."""
        self._device = device
        # `None` for what has to be worked out each time.
        self._known: dict[Any, tuple[_Result, ...] | _Result | None] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns what `func` makes of its fake arguments, as new fake tensors."""
        if func in _VIEWS and self._is_simple(args[0]):
            with in_kernel_invocation_manager(args[0].fake_mode):
                view = func(*args, **kwargs)
            return FakeTensor(args[0].fake_mode, view, self._device)
        key, mode = self._key(func, args, kwargs)
        if mode is None:
            return func(*args, **kwargs)
        if key not in self._known:
            result = func(*args, **kwargs)
            self._known[key] = self._form(args, kwargs, result)
            return result
        known = self._known[key]
        if known is None:
            return func(*args, **kwargs)
        if isinstance(known, _Result):
            return known.make(mode, self._device)
        return tuple(each.make(mode, self._device) for each in known)

    def _key(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, FakeTensorMode | None]:
        """Returns what the results depend on, and the mode of the arguments or `None`."""
        first = next((value for value in args if type(value) is FakeTensor), None)
        if first is None or not _is_predictable(func):
            return None, None
        try:
            parts = tuple([self._part(value) for value in args])
            named = tuple([(name, self._part(value)) for name, value in kwargs.items()])
        except _NotSimpleError:
            return None, None
        state = (torch.get_default_dtype(), torch.is_inference_mode_enabled())
        return (func, parts, named, state), first.fake_mode

    def _part(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            if not self._is_simple(value):
                raise _NotSimpleError
            return value.dtype, value.shape, value.stride(), value.storage_offset()
        if kind is list or kind is tuple:
            return tuple([self._part(item) for item in value])
        if kind not in _LITERALS:
            raise _NotSimpleError
        return kind, value

    def _is_simple(self, value: Any) -> bool:
        return (
            type(value) is FakeTensor
            and value.fake_device == self._device
            and value.constant is None
            and value.layout is torch.strided
            and not value.dtype.is_complex
            and not value.is_neg()
        )

    def _form(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> tuple[_Result, ...] | _Result | None:
        """Returns the form of a result, or `None` if it cannot be made again from the key."""
        storages = {_storage(value) for value in _tensors((args, kwargs))}
        forms = []
        for each in result if isinstance(result, tuple) else (result,):
            if not self._is_simple(each) or each.requires_grad or each.storage_offset():
                return None
            if _storage(each) in storages:
                return None
            storages.add(_storage(each))
            forms.append(_Result(each.dtype, each.shape, each.stride()))
        return tuple(forms) if isinstance(result, tuple) else forms[0]


@cache
def _is_predictable(func: Any) -> bool:
    """Returns whether nothing but the forms of the arguments decides on those of the results."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.namespace == "aten"
        and not func._schema.is_mutable
        and not func.is_view
        and not any(tag in func.tags for tag in _UNPREDICTABLE)
    )


def _storage(value: torch.Tensor) -> int:
    address: int = value.untyped_storage()._cdata
    return address


def _tensors(values: Any) -> list[FakeTensor]:
    """Returns the fake tensors in nested lists, tuples and mappings."""
    if isinstance(values, FakeTensor):
        return [values]
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return [tensor for item in values for tensor in _tensors(item)]
    return []

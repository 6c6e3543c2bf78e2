"""Tensors on the IPU outside a trace, whose values become constants of a model.

`tensor.to("ipu")` returns such a tensor. The values stay on the host, and only copies are allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.arguments import written_arguments
from poptorch_emu.torch_versions import disabled_torch_function_impl, make_wrapper_subclass, pytree
from poptorch_emu.trace.values.narrowing import refuse

aten = torch.ops.aten
_HOST = torch.device("cpu")
_COPIES = {
    aten._to_copy.default,
    aten.alias.default,
    aten.clone.default,
    aten.copy_.default,
    aten.detach.default,
}


class HostBacked(torch.Tensor):
    """A tensor with device `ipu:0` whose values are on the host.

    Attributes:
        host: CPU tensor with the values.
    """

    host: torch.Tensor
    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> HostBacked:
        """Makes a tensor with the given values."""
        refuse(values.dtype)
        new: HostBacked = make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            dtype=values.dtype,
            device=torch.device("ipu:0"),
        )
        new.host = values
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickles the values."""
        return HostBacked, (self.host,)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Copies the values.

        Raises:
            Error: `func` is not a copy.
        """
        if func not in _COPIES:
            raise compiler_error(
                f"{func} was called on an IPU tensor outside a model: it can only be copied, to "
                'the CPU with tensor.to("cpu"). Compute in forward, or before tensor.to("ipu").'
            )
        kwargs = dict(kwargs or {})
        device = torch.device(kwargs.pop("device", None) or args[0].device)
        on_host = pytree.tree_map_only(HostBacked, lambda tensor: tensor.host, args)
        values = func(*on_host, **kwargs)
        if func is aten.copy_.default:
            return args[0]
        return values if device == _HOST else HostBacked(values)


def check_not_written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks that an operation of a model does not change such a tensor.

    Raises:
        Error: the operation would change one of these tensors.
    """
    for value in written_arguments(func, args, kwargs):
        if isinstance(value, HostBacked):
            raise compiler_error(
                f"{func} would change a tensor of shape {list(value.shape)} that went to the IPU "
                "before the model was traced: it is a constant. Change a clone() of it, or make "
                "it a buffer."
            )


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = None,
    **_: Any,
) -> HostBacked:
    layout = memory_format or torch.contiguous_format
    return HostBacked(torch.empty(size, dtype=dtype, device=_HOST, memory_format=layout))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> HostBacked:
    return HostBacked(torch.empty_strided(size, stride, dtype=dtype, device=_HOST))


# PyTorch calls these operators to allocate a tensor on the IPU outside a trace.
_library = torch.library.Library("aten", "IMPL", "IPU")  # type: ignore[no-untyped-call]
_library.impl("empty.memory_format", _empty)  # type: ignore[no-untyped-call]
_library.impl("empty_strided", _empty_strided)  # type: ignore[no-untyped-call]

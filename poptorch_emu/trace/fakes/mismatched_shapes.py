"""Replaces errors of fake tensors about shapes and types by those of PyTorch's kernels.

The rules for fake tensors have other messages than the kernels, which users know. A kernel checks
the shapes before it computes, and a tensor expanded from one number takes no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.torch_versions import disable_current_modes, pytree
from poptorch_emu.trace.fakes import operand_types

aten = torch.ops.aten
# Operators that check shapes first, beside the elementwise ones.
_CHECKED_FIRST = frozenset(
    {
        aten.mm,
        aten.addmm,
        aten.bmm,
        aten.baddbmm,
        aten.mv,
        aten.addmv,
        aten.dot,
        aten.linear,
        aten.cat,
    }
)


def in_words_of_kernel(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], failure: RuntimeError
) -> RuntimeError:
    """Returns the error of PyTorch's kernel for these arguments; `failure` if it has none.

    Args:
        func: operator that failed.
        args: positional arguments of the call, with fake tensors.
        kwargs: keyword arguments of the call.
        failure: error that was raised for fake tensors.
    """
    about_types = operand_types.words_of_kernel(func, args, kwargs)
    if "type" in about_types:
        return RuntimeError(about_types)
    is_elementwise = torch.Tag.pointwise in func.tags and not func._schema.is_mutable
    if not is_elementwise and func.overloadpacket not in _CHECKED_FIRST:
        return failure
    with disable_current_modes():
        given, named = pytree.tree_map_only(torch.Tensor, _of_one_number, (args, dict(kwargs)))
        try:
            func(*given, **named)
        except RuntimeError as said:
            return RuntimeError(str(said))
        except Exception:
            return failure
    return failure


def _of_one_number(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=value.dtype).expand(value.shape)

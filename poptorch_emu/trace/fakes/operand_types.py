"""Rejects operands at capture whose data types PyTorch's kernels do not accept.

PyTorch's rules for fake tensors check less than its kernels. For example, they accept a product of
a matrix of integers and one of floats. So the kernel itself runs on tensors of one element, and its
error has PyTorch's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.torch_versions import disable_current_modes, pytree

# Messages of kernels about data types. Other failures are caused by the single element.
_ABOUT_TYPES = re.compile(
    r"same dtype|expected scalar type|expected target dtype|Expected dtype|Found dtype|"
    r"only support|not implemented for '(Long|Int|Bool)'"
)
_FLOATING_TWIN = {torch.ops.poptorch_emu.rnn_layer.default: torch.ops.aten.linear.default}


def check(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises the error of PyTorch's kernel for integer or bool operands, if it has one.

    Raises:
        RuntimeError: the kernel does not accept the data types.
    """
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if _is_tensor(value)]
    if all(value.is_floating_point() for value in tensors):
        return
    if said := words_of_kernel(func, args, kwargs):
        raise RuntimeError(said)


def words_of_kernel(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Returns the message of PyTorch's kernel about these data types, with the way out, or ""."""
    if func in _FLOATING_TWIN:
        func, args, kwargs = _FLOATING_TWIN[func], (args[0], args[2][0]), {}
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return ""  # Other libraries may do anything; a draw would change the state.
    with disable_current_modes():
        small_args, small_kwargs = pytree.tree_map_only(
            torch.Tensor, _of_one_element, (args, dict(kwargs))
        )
        try:
            func(*small_args, **small_kwargs)
        except Exception as failure:
            if _ABOUT_TYPES.search(str(failure)):
                return f"{failure}. {_way_out(str(failure))}"
    return ""


def _way_out(message: str) -> str:
    if re.search(r"\bLong\b.*(found|got)|int32/int64", message):
        return "Cast the labels or indices first, as y.long()."
    return "Cast the integers first, as x.float()."


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _of_one_element(value: torch.Tensor) -> torch.Tensor:
    return torch.ones([1] * value.dim(), dtype=value.dtype)

"""Refuses integers where PyTorch's kernels take none, when a model is captured.

PyTorch's rules for tensors without values ask for less than its kernels: by them a matrix of
integers times one of floats is a matrix. The kernel itself is asked here, with tensors of one
element, so that the text of the error is PyTorch's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from poptorch_emu.torch_versions import disable_current_modes, pytree

# How kernels say that they do not take a type; whatever else they say is about the one element.
_ABOUT_TYPES = re.compile(
    r"same dtype|expected scalar type|Found dtype|only support|"
    r"not implemented for '(Long|Int|Bool)'"
)
_FLOATING_TWIN = {torch.ops.poptorch_emu.rnn_layer.default: torch.ops.aten.linear.default}


def check(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises what PyTorch's kernel raises for integers or truth values among its tensors.

    Raises:
        RuntimeError: it takes none.
    """
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if _is_tensor(value)]
    if all(value.is_floating_point() for value in tensors):
        return
    if func in _FLOATING_TWIN:
        func, args, kwargs = _FLOATING_TWIN[func], (args[0], args[2][0]), {}
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return  # What users define may do anything, and numbers that are drawn are missing later.
    with disable_current_modes():
        small_args, small_kwargs = pytree.tree_map_only(
            torch.Tensor, _of_one_element, (args, dict(kwargs))
        )
        try:
            func(*small_args, **small_kwargs)
        except Exception as failure:
            if _ABOUT_TYPES.search(str(failure)):
                raise RuntimeError(f"{failure}. Cast the integers first, as x.float().") from None


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _of_one_element(value: torch.Tensor) -> torch.Tensor:
    return torch.ones([1] * value.dim(), dtype=value.dtype)

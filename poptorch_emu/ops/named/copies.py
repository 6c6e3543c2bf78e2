"""Operators that return an input: copies, and values with the gradient of another value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from poptorch_emu.ops.named.named_operator import Attributes

# RemapCE has either the first or the second set of attributes, none of which changes a value.
_REMAP_ONE = ("grain_size",)
_REMAP_BOTH = (
    "fwd_grain_size",
    "bwd_grain_size",
    "fwd_clone_layout",
    "bwd_clone_layout",
    "fwd_after_matmul",
    "bwd_after_matmul",
)
REMAP_ATTRIBUTES = (*_REMAP_ONE, *_REMAP_BOTH)


def copy(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns a copy."""
    return inputs[0].clone()


def remap(inputs: Sequence[torch.Tensor], given: Attributes) -> torch.Tensor:
    """Returns a copy, which has another layout on tiles on a real IPU.

    Raises:
        ValueError: neither set of attributes is complete.
    """
    if not any(_are_given(names, given) for names in (_REMAP_ONE, _REMAP_BOTH)):
        found = [name for name in REMAP_ATTRIBUTES if given[name] is not None]
        raise ValueError(
            f"needs the attribute 'grain_size', or all of {list(_REMAP_BOTH)}; given are {found}"
        )
    return inputs[0].clone()


def _are_given(names: Sequence[str], given: Mapping[str, Any]) -> bool:
    return all(given[name] is not None for name in names)


class _Proxy(torch.autograd.Function):
    """Returns the first tensor and sends the gradient to the second one."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, proxy: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradients[0]


def autograd_proxy(inputs: Sequence[torch.Tensor], given: Attributes) -> Any:
    """Returns the first tensor; the second tensor receives the gradient, unchanged.

    Raises:
        ValueError: the shapes of the tensors differ.
    """
    value, proxy = inputs
    if value.shape != proxy.shape:
        raise ValueError(
            f"the value has shape {list(value.shape)} and its proxy {list(proxy.shape)}; expected "
            "the same"
        )
    return _Proxy.apply(value, proxy)  # type: ignore[no-untyped-call]

"""Strides of results where PyTorch's rules for fake tensors differ from its kernels.

A captured value has the strides of PyTorch's CPU kernel, because Python code sees them, and views
and copies depend on them. `tests/opinfo/memory_order.py` compares all operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poptorch_emu.torch_versions import no_dispatch
from poptorch_emu.trace.fakes import metadata_rules

aten = torch.ops.aten

Strides = Sequence[int]
# Function of (arguments, shape of the result) that returns a tensor with the result's strides.
_Rule = Callable[[tuple[Any, ...], torch.Size], torch.Tensor]

# Channels-last formats of images and volumes, by number of dimensions.
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def corrected(func: Any, args: tuple[Any, ...], results: Any) -> list[Strides] | None:
    """Returns the strides of each tensor result; None if PyTorch's rule is correct."""
    rule = _RULES.get(func)
    if rule is None:
        return None
    each = results if isinstance(results, (tuple, list)) else (results,)
    with no_dispatch():
        return [rule(args, value.shape).stride() for value in each if value is not None]


def _in_order(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _suggested_by(index: int) -> _Rule:
    """Returns the rule of a kernel that writes channels last if an argument is channels last."""

    def rule(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
        given = args[index]
        layout = _LAST.get(len(shape)) if given.dim() == len(shape) else None
        if layout is None or not _lies_last(given.shape, given.stride()):
            return _in_order(args, shape)
        return torch.empty(shape, device="meta", memory_format=layout)

    return rule


def _lies_last(shape: Sequence[int], strides: Strides) -> bool:
    """Returns whether kernels treat images as channels last (PyTorch's `suggest_memory_format`)."""
    least = 0
    if strides[1] == 0 or 0 in shape:
        return False
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        # A layout that fits both formats counts as contiguous.
        if strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * shape[dim]
    return True


def _on_meta(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), device="meta")


def _like(index: int) -> _Rule:
    """Returns the rule of a kernel whose result has the layout of an argument of the same shape."""

    def rule(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
        given = args[index]
        is_like = given.shape == shape
        return (
            metadata_rules.made_by(aten.empty_like.default, _on_meta(given))
            if is_like
            else _in_order(args, shape)
        )

    return rule


def _iterated(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
    """Returns a result with the layout of an elementwise kernel over two tensors."""
    return metadata_rules.made_by(aten.add.Tensor, _on_meta(args[0]), _on_meta(args[1]))


def _volume(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
    """Returns the gradient of pooled volumes, with the order of the volumes.

    Without a dimension of the batch, the kernel adds one, and takes the order of the result's
    gradient.
    """
    if len(shape) == 5:
        return _suggested_by(1)(args, shape)
    given, last = _on_meta(args[0]).unsqueeze(0), torch.channels_last_3d
    is_last = given.is_contiguous(memory_format=last) and not given.is_contiguous()
    order = last if is_last else torch.contiguous_format
    return torch.empty((1, *shape), device="meta", memory_format=order)[0]


def _scaled(args: tuple[Any, ...], shape: torch.Size) -> torch.Tensor:
    """Returns the result of `ldexp`: the product of a tensor and contiguous powers of two."""
    return _iterated((args[0], _in_order(args, args[1].shape)), shape)


_RULES: dict[Any, _Rule] = {
    aten._batch_norm_no_update.default: _suggested_by(0),
    aten._batch_norm_with_update.default: _suggested_by(0),
    aten._batch_norm_with_update_functional.default: _suggested_by(0),
    aten._native_batch_norm_legit.default: _suggested_by(0),
    aten._native_batch_norm_legit.no_stats: _suggested_by(0),
    aten._native_batch_norm_legit_functional.default: _suggested_by(0),
    aten._native_batch_norm_legit_no_training.default: _suggested_by(0),
    aten.batch_norm_backward.default: _suggested_by(1),
    aten.binary_cross_entropy.default: _like(0),
    aten.binary_cross_entropy_backward.default: _like(1),
    aten.channel_shuffle.default: _suggested_by(0),
    aten.copysign.Tensor: _iterated,
    aten.glu_backward.default: _in_order,
    aten.heaviside.default: _iterated,
    aten.huber_loss_backward.default: _in_order,
    aten.ldexp.Tensor: _scaled,
    aten.log_sigmoid_forward.default: _in_order,
    aten.logical_xor.default: _iterated,
    aten.logit_backward.default: _iterated,
    aten.max_pool3d_with_indices_backward.default: _volume,
    aten.max_unpool2d.default: _suggested_by(0),
    aten.mse_loss_backward.default: _in_order,
    aten.native_batch_norm.default: _suggested_by(0),
    aten.native_batch_norm_backward.default: _suggested_by(1),
    aten.native_group_norm.default: _suggested_by(0),
    aten.native_group_norm_backward.default: _suggested_by(1),
    aten.native_layer_norm_backward.default: _in_order,
    aten.pixel_shuffle.default: _suggested_by(0),
    aten.reflection_pad2d_backward.default: _suggested_by(1),
    aten.reflection_pad3d.default: _suggested_by(0),
    aten.reflection_pad3d_backward.default: _suggested_by(1),
    aten.replication_pad2d_backward.default: _suggested_by(1),
    aten.replication_pad3d.default: _suggested_by(0),
    aten.replication_pad3d_backward.default: _suggested_by(1),
    aten.roll.default: _suggested_by(0),
    aten.smooth_l1_loss_backward.default: _in_order,
    aten.special_xlog1py.default: _iterated,
}

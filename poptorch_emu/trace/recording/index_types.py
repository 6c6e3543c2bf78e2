"""Casts indices and labels to the integer type that PyTorch's kernels accept.

The device's integers are int32, so programs pass indices and class labels of any integer type, but
most kernels of PyTorch only accept int64. The casts depend on operators, not on graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from poptorch_emu.torch_versions import OpOverload

aten = torch.ops.aten

# Index arguments, with the operators that have them. In-place variants and variants with `out` use
# the same names.
_OPERATORS = {
    "index": (
        "gather scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce "
        "index_select put take"
    ),
    "indices": (
        "embedding embedding_dense_backward embedding_renorm_ _embedding_bag "
        "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only index "
        "index_put _index_put_impl_ _unsafe_index _unsafe_index_put max_unpool2d max_unpool3d"
    ),
    "offsets": "_embedding_bag _embedding_bag_backward _embedding_bag_forward_only",
    "target": (
        "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward "
        "multilabel_margin_loss_forward nll_loss2d_backward nll_loss2d_forward nll_loss_backward "
        "nll_loss_forward"
    ),
    "targets": "_ctc_loss _ctc_loss_backward",
    "input_lengths": "_ctc_loss _ctc_loss_backward",
    "target_lengths": "_ctc_loss _ctc_loss_backward",
    "sorter": "searchsorted",
}
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})
# Operators that use a uint8 tensor as a mask, not as an index.
_TAKES_MASKS = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def widened(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    cast: Callable[[torch.Tensor, torch.dtype], torch.Tensor],
) -> Arguments:
    """Returns the arguments of an operation, with indices cast to int64.

    A uint8 mask becomes bool.
    """
    where = _index_arguments(func)
    if not where:
        return args, dict(kwargs)
    takes_masks = func._schema.name.partition("::")[2] in _TAKES_MASKS

    def widen(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [widen(each) for each in value]
        if not isinstance(value, torch.Tensor) or value.dtype not in _INTEGERS:
            return value
        is_mask = takes_masks and value.dtype is torch.uint8
        return cast(value, torch.bool if is_mask else torch.int64)

    new_args = tuple(widen(v) if place in where else v for place, v in enumerate(args))
    return new_args, {name: widen(v) if name in where else v for name, v in kwargs.items()}


@cache
def _index_arguments(func: Any) -> frozenset[int | str]:
    """Returns the positions and names of the arguments of `func` that are indices."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return frozenset()
    operator = func._schema.name.partition("::")[2]
    names = {
        name
        for name, operators in _OPERATORS.items()
        if operator in operators.split() or operator.removesuffix("_") in operators.split()
    }
    places = (p for p, argument in enumerate(func._schema.arguments) if argument.name in names)
    return frozenset((*places, *names))

"""Computes the gradient of a cross entropy by its scores at once.

PyTorch makes that by the logarithms of the softmax first, which is as large as the scores and zero
but for one class of each row. The kernel that makes both (`csrc/ops/cross_entropy.cpp`) has the
same bits.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph, is_single
from poptorch_emu.engine.layout.arrangement import Arrangement, order_of

aten = torch.ops.aten

_BOTH = torch.ops.poptorch_emu.cross_entropy_backward.default
_LOSS_BACKWARD = aten.nll_loss_backward.default
_SOFTMAX_BACKWARD = aten._log_softmax_backward_data.default
_PERMUTATIONS = (aten.transpose.int, aten.permute.default)
_NO_REDUCTION = 0
# Of logarithms from which it pays: less stays in a core's cache anyway.
_FEWEST_NUMBERS = 2**16


def fuse_loss_gradients(code: EngineGraph) -> int:
    """Changes each gradient of a loss that only its softmax reads; returns how many."""
    losses = code.graph.fx.find_nodes(op="call_function", target=_LOSS_BACKWARD)
    return sum(_fuse(loss, code) for loss in losses)


def _fuse(loss: fx.Node, code: EngineGraph) -> bool:
    gradient, logarithms, target, weight, reduction, ignore_index, total_weight = loss.args
    assert isinstance(logarithms, fx.Node)
    value = logarithms.meta["val"]
    is_plain = weight is None and reduction != _NO_REDUCTION and is_single(logarithms)
    is_plain &= value.dim() == 2 and value.numel() >= _FEWEST_NUMBERS
    softmax = _reader_in_order(loss) if is_plain else None
    if softmax is None or not _is_of(softmax, logarithms):
        return False
    args = (gradient, logarithms, target, reduction, ignore_index, total_weight)
    both = code.insert(loss, _BOTH, args, value)
    shape = list(softmax.meta["val"].shape)
    seen = code.insert(loss, aten.reshape.default, (both, shape), softmax.meta["val"])
    softmax.replace_all_uses_with(seen)
    return True


def _reader_in_order(loss: fx.Node) -> fx.Node | None:
    """Returns the gradient of a softmax that alone reads a loss's, through views in its order."""
    node, found = loss, Arrangement.of(loss.meta["val"].shape)
    while len(node.users) == 1:
        (user,) = node.users
        if user.target is _SOFTMAX_BACKWARD:
            in_order = found.order == list(range(len(found.order)))
            return user if in_order and user.args[0] is node else None
        if user.target in _PERMUTATIONS:
            found = found.permuted(order_of(user.target, user.args, len(found.dims)))
        elif user.target in VIEWS:
            viewed = found.viewed(user.meta["val"].shape)
            if viewed is None:
                return None
            found = viewed
        else:
            return None
        node = user
    return None


def _is_of(softmax: fx.Node, logarithms: fx.Node) -> bool:
    """Returns whether a softmax along the last dimension has made the logarithms a loss reads."""
    _, rows, dim, dtype = softmax.args
    assert isinstance(rows, fx.Node) and isinstance(dim, int)
    seen: object = logarithms
    while seen is not rows and isinstance(seen, fx.Node) and seen.target in VIEWS:
        seen = seen.args[0]
    value = rows.meta["val"]
    is_along_rows = dim % value.dim() == value.dim() - 1
    is_same = value.shape[-1] == logarithms.meta["val"].shape[-1]
    return seen is rows and is_along_rows and is_same and dtype == torch.float32

"""Cross entropies along the rows of memory, with both of their gradients in one kernel.

PyTorch's loss expects the classes in the second dimension. A linear layer returns them in the last
dimension, so programs transpose its result. `compute_losses_by_rows` computes the log-softmax, the
loss and their gradients on the untransposed rows; no row is copied, and views restore the shapes.

For the gradient of the scores, PyTorch first computes the gradient of the log-probabilities. That
tensor is as large as the scores and is zero except for one class in each row. `fuse_loss_gradients`
replaces both by one kernel (`csrc/ops/cross_entropy.cpp`) with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph, is_single
from poptorch_emu.engine.layout.arrangement import PERMUTATIONS, Arrangement, order_of
from poptorch_emu.ir.arguments import arguments_of, with_arguments

aten = torch.ops.aten

_SOFTMAX = aten._log_softmax.default
_SOFTMAX_BACKWARD = aten._log_softmax_backward_data.default
_LOSS = aten.nll_loss2d_forward.default
_LOSS_BACKWARD = aten.nll_loss2d_backward.default
_ROWS_LOSS = aten.nll_loss_forward.default
_ROWS_LOSS_BACKWARD = aten.nll_loss_backward.default
_BOTH_BACKWARD = torch.ops.poptorch_emu.cross_entropy_backward.default
_NO_REDUCTION = 0
# Minimum number of log-probabilities for the fused kernel, because fewer stay in a core's cache.
_FEWEST_NUMBERS = 2**16


def compute_losses_by_rows(code: EngineGraph) -> int:
    """Changes each log-softmax along rows of memory, and its losses; returns the number changed."""
    losses = [
        _Loss(code, node)
        for node in code.graph.fx.find_nodes(op="call_function", target=_SOFTMAX)
        if _is_along_rows(node)
    ]
    changeable = [loss for loss in losses if loss.is_changeable]
    for loss in changeable:
        loss.change()
    return len(changeable)


def _is_along_rows(softmax: fx.Node) -> bool:
    """Returns whether the classes are adjacent in memory but not in the last dimension."""
    call = arguments_of(softmax)
    if call.half_to_float or not is_single(call.self) or not is_single(softmax):
        return False
    value = call.self.meta["val"]
    dim = call.dim % max(value.dim(), 1)
    is_last = all(size == 1 for size in value.shape[dim + 1 :])
    return not is_last and value.shape[dim] > 1 and value.stride(dim) == 1


class _Loss:
    """One log-softmax and the losses and gradients that read it.

    Shapes follow PyTorch, (batch, classes, ...), with the classes in `dim`. By rows, the classes
    are the last dimension.
    """

    def __init__(self, code: EngineGraph, softmax: fx.Node) -> None:
        self._code = code
        self._softmax = softmax
        num_dims = softmax.meta["val"].dim()
        dim = arguments_of(softmax).dim % num_dims
        self._to_rows = [*(each for each in range(num_dims) if each != dim), dim]
        self._from_rows = [self._to_rows.index(each) for each in range(num_dims)]

        # A loss may read the classes through a view that adds a dimension of length 1.
        seen = [softmax, *(user for user in softmax.users if user.target in VIEWS)]
        self._gradients = [
            user
            for user in softmax.users
            if user.target is _SOFTMAX_BACKWARD and arguments_of(user).output is softmax
        ]
        self._losses = [
            user for node in seen for user in node.users if user.target in (_LOSS, _LOSS_BACKWARD)
        ]

    @property
    def is_changeable(self) -> bool:
        """Whether each loss of these classes can be computed by rows."""
        shape = self._softmax.meta["val"].shape
        return all(
            arguments_of(loss).reduction != _NO_REDUCTION
            and arguments_of(loss).self.meta["val"].shape[:2] == shape[:2]
            for loss in self._losses
        ) and (not self._losses or self._to_rows[-1] == 1)

    def change(self) -> None:
        """Changes the log-softmax, then the operations that read it, in their order."""
        code, softmax = self._code, self._softmax
        logits = self._permuted(softmax, arguments_of(softmax).self, self._to_rows)
        rows = code.insert(softmax, _SOFTMAX, (logits, -1, False), logits.meta["val"])
        turned = self._permuted(softmax, rows, self._from_rows)
        # Other readers expect the original order, because some of PyTorch's kernels require it.
        # Usually there is no other reader, and the copy is removed.
        layout = {"memory_format": torch.contiguous_format}
        value = softmax.meta["val"]
        in_order = code.insert(softmax, aten.clone.default, (turned,), value, layout)
        for loss in self._losses:
            if loss.target is _LOSS:
                self._change_loss(loss, rows)
            else:
                self._change_gradient_of_loss(loss, rows)
        for gradient in self._gradients:
            self._change_gradient(gradient, rows)
        softmax.replace_all_uses_with(in_order)

    def _change_loss(self, loss: fx.Node, rows: fx.Node) -> None:
        target = self._one_dim(loss, arguments_of(loss).target)
        args = with_arguments(loss, self=self._flat(loss, rows), target=target)
        made = self._code.insert(loss, _ROWS_LOSS, args, loss.meta["val"])
        loss.replace_all_uses_with(made)

    def _change_gradient_of_loss(self, loss: fx.Node, rows: fx.Node) -> None:
        flat, target = self._flat(loss, rows), self._one_dim(loss, arguments_of(loss).target)
        args = with_arguments(loss, self=flat, target=target)
        made = self._code.insert(loss, _ROWS_LOSS_BACKWARD, args, flat.meta["val"])
        whole = self._reshaped(loss, made, rows.meta["val"].shape)
        seen = self._permuted(loss, whole, self._from_rows)
        loss.replace_all_uses_with(self._reshaped(loss, seen, loss.meta["val"].shape))

    def _change_gradient(self, backward: fx.Node, rows: fx.Node) -> None:
        by_rows = self._permuted(backward, arguments_of(backward).grad_output, self._to_rows)
        args = with_arguments(backward, grad_output=by_rows, output=rows, dim=-1)
        made = self._code.insert(backward, _SOFTMAX_BACKWARD, args, rows.meta["val"])
        backward.replace_all_uses_with(self._permuted(backward, made, self._from_rows))

    def _permuted(self, before: fx.Node, node: Any, order: Sequence[int]) -> fx.Node:
        of_node = node.meta["val"]
        shape, strides = (
            [each[dim] for dim in order] for each in (of_node.shape, of_node.stride())
        )
        value = torch.empty_strided(shape, strides, dtype=of_node.dtype, device="meta")
        return self._code.insert(before, aten.permute.default, (node, list(order)), value)

    def _reshaped(self, before: fx.Node, node: Any, shape: Sequence[int]) -> fx.Node:
        dtype = node.meta["val"].dtype
        value = torch.empty(tuple(shape), dtype=dtype, device="meta")
        return self._code.insert(before, aten.reshape.default, (node, list(shape)), value)

    def _flat(self, before: fx.Node, rows: fx.Node) -> fx.Node:
        *others, classes = rows.meta["val"].shape
        return self._reshaped(before, rows, (math.prod(others), classes))

    def _one_dim(self, before: fx.Node, target: Any) -> fx.Node:
        return self._reshaped(before, target, (target.meta["val"].numel(),))


def fuse_loss_gradients(code: EngineGraph) -> int:
    """Fuses each gradient of a loss that only a log-softmax reads; returns the number fused."""
    losses = code.graph.fx.find_nodes(op="call_function", target=_ROWS_LOSS_BACKWARD)
    return sum(_fuse(loss, code) for loss in losses)


def _fuse(loss: fx.Node, code: EngineGraph) -> bool:
    call = arguments_of(loss)
    value = call.self.meta["val"]
    is_plain = call.weight is None and call.reduction != _NO_REDUCTION and is_single(call.self)
    is_plain &= value.dim() == 2 and value.numel() >= _FEWEST_NUMBERS
    softmax = _reader_in_order(loss) if is_plain else None
    if softmax is None or not _is_of(softmax, call.self):
        return False
    rest = (call.target, call.reduction, call.ignore_index, call.total_weight)
    both = code.insert(loss, _BOTH_BACKWARD, (call.grad_output, call.self, *rest), value)
    shape = list(softmax.meta["val"].shape)
    seen = code.insert(loss, aten.reshape.default, (both, shape), softmax.meta["val"])
    softmax.replace_all_uses_with(seen)
    return True


def _reader_in_order(loss: fx.Node) -> fx.Node | None:
    """Returns the log-softmax gradient that alone reads a loss gradient, through views in order."""
    node, found = loss, Arrangement.of(loss.meta["val"].shape)
    while len(node.users) == 1:
        (user,) = node.users
        if user.target is _SOFTMAX_BACKWARD:
            in_order = found.order == list(range(len(found.order)))
            return user if in_order and arguments_of(user).grad_output is node else None
        if user.target in PERMUTATIONS:
            found = found.permuted(order_of(user, len(found.dims)))
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
    """Returns whether the log-softmax, along the last dimension, computed the loss's input."""
    call = arguments_of(softmax)
    seen: object = logarithms
    while seen is not call.output and isinstance(seen, fx.Node) and seen.target in VIEWS:
        seen = seen.args[0]
    value = call.output.meta["val"]
    is_along_rows = call.dim % value.dim() == value.dim() - 1
    is_same = value.shape[-1] == logarithms.meta["val"].shape[-1]
    return seen is call.output and is_along_rows and is_same and call.input_dtype == torch.float32

"""Computes a cross entropy along the rows of memory, where a view put the classes elsewhere.

A loss of PyTorch wants the classes in the second dimension; a linear layer gives them in the last
one, so that programs transpose its result. The logarithm of the softmax, the loss and their
gradients go by rows here, and no row is copied: what they make is seen through views. The graph
decides, whatever the stages, so that the bits do not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import VIEWS, EngineGraph, is_single

aten = torch.ops.aten

_SOFTMAX = aten._log_softmax.default
_SOFTMAX_BACKWARD = aten._log_softmax_backward_data.default
_LOSS = aten.nll_loss2d_forward.default
_LOSS_BACKWARD = aten.nll_loss2d_backward.default
# The place of the reduction among the arguments of the loss, and of its gradient.
_REDUCTION, _BACKWARD_REDUCTION = 3, 4
_NO_REDUCTION = 0


def compute_losses_by_rows(code: EngineGraph) -> int:
    """Changes each logarithm of a softmax along rows of memory, and its loss; returns how many."""
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
    """Returns whether the classes lie next to each other in memory, but are not the last."""
    logits, dim, is_from_half = softmax.args
    assert isinstance(logits, fx.Node) and isinstance(dim, int)
    if is_from_half or not is_single(logits) or not is_single(softmax):
        return False
    value = logits.meta["val"]
    dim %= max(value.dim(), 1)
    is_last = all(size == 1 for size in value.shape[dim + 1 :])
    return not is_last and value.shape[dim] > 1 and value.stride(dim) == 1


def _is_reduced(loss: fx.Node) -> bool:
    place = _REDUCTION if loss.target is _LOSS else _BACKWARD_REDUCTION
    return bool(loss.args[place] != _NO_REDUCTION)


def _seen_by(loss: fx.Node) -> fx.Node:
    """Returns the logarithms that a loss, or its gradient, reads: (batch, classes, ...)."""
    logarithms = loss.args[0 if loss.target is _LOSS else 1]
    assert isinstance(logarithms, fx.Node)
    return logarithms


class _Loss:
    """One softmax and what is computed of it.

    Shapes are those of PyTorch: (batch, classes, ...) with the classes in `dim`; by rows they are
    the last.
    """

    def __init__(self, code: EngineGraph, softmax: fx.Node) -> None:
        self._code = code
        self._softmax = softmax
        num_dims = softmax.meta["val"].dim()
        dim = int(softmax.args[1]) % num_dims  # type: ignore[arg-type]
        self._to_rows = [*(each for each in range(num_dims) if each != dim), dim]
        self._from_rows = [self._to_rows.index(each) for each in range(num_dims)]

        # A loss may see the classes through a view, which adds a dimension of length 1.
        seen = [softmax, *(user for user in softmax.users if user.target in VIEWS)]
        self._gradients = [
            user
            for user in softmax.users
            if user.target is _SOFTMAX_BACKWARD and user.args[1] is softmax
        ]
        self._losses = [
            user for node in seen for user in node.users if user.target in (_LOSS, _LOSS_BACKWARD)
        ]

    @property
    def is_changeable(self) -> bool:
        """Whether each loss of these classes has a form by rows; others want them as they are."""
        shape = self._softmax.meta["val"].shape
        return all(
            _is_reduced(loss) and _seen_by(loss).meta["val"].shape[:2] == shape[:2]
            for loss in self._losses
        ) and (not self._losses or self._to_rows[-1] == 1)

    def change(self) -> None:
        """Changes the softmax, then its users, in their order."""
        code, softmax = self._code, self._softmax
        logits = self._permuted(softmax, softmax.args[0], self._to_rows)
        rows = code.insert(softmax, _SOFTMAX, (logits, -1, False), logits.meta["val"])
        turned = self._permuted(softmax, rows, self._from_rows)
        # Others expect it in its own order: some of PyTorch's kernels demand that. Mostly there are
        # none, and nothing is copied.
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
        _, target, *rest = loss.args
        args = (self._flat(loss, rows), self._one_dim(loss, target), *rest)
        made = self._code.insert(loss, aten.nll_loss_forward.default, args, loss.meta["val"])
        loss.replace_all_uses_with(made)

    def _change_gradient_of_loss(self, loss: fx.Node, rows: fx.Node) -> None:
        gradient, _, target, *rest = loss.args
        flat = self._flat(loss, rows)
        args = (gradient, flat, self._one_dim(loss, target), *rest)
        made = self._code.insert(loss, aten.nll_loss_backward.default, args, flat.meta["val"])
        whole = self._reshaped(loss, made, rows.meta["val"].shape)
        seen = self._permuted(loss, whole, self._from_rows)
        loss.replace_all_uses_with(self._reshaped(loss, seen, loss.meta["val"].shape))

    def _change_gradient(self, backward: fx.Node, rows: fx.Node) -> None:
        gradient, _, _, dtype = backward.args
        by_rows = self._permuted(backward, gradient, self._to_rows)
        made = self._code.insert(
            backward, _SOFTMAX_BACKWARD, (by_rows, rows, -1, dtype), rows.meta["val"]
        )
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

"""Makes a batch norm in evaluation part of the convolution before it.

It multiplies each channel by a number and adds one: so do other weights and another bias, which are
made of sources alone, and once (see `preparation`). The graph decides: where the two are on
different stages, the convolution's does all of it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph, is_single

aten = torch.ops.aten

_CONVOLUTION = aten.convolution.default
_NORM = aten.native_batch_norm.default
# The place among the arguments of a convolution.
_WEIGHT, _BIAS, _IS_TRANSPOSED = 1, 2, 6
# The place among the arguments of a batch norm.
_IS_TRAINING = 5


def fold_norms(code: EngineGraph) -> int:
    """Changes convolutions that are followed by a batch norm alone; returns how many."""
    num_changes = 0
    for norm in code.graph.fx.find_nodes(op="call_function", target=_NORM):
        convolution = norm.args[0]
        if convolution.target is _CONVOLUTION and _is_foldable(code, convolution, norm):
            _fold(code, convolution, norm)
            num_changes += 1
    return num_changes


def _is_foldable(code: EngineGraph, convolution: fx.Node, norm: fx.Node) -> bool:
    parameters = [
        *norm.args[1:_IS_TRAINING],
        *convolution.args[_WEIGHT : _BIAS + 1],
    ]
    return (
        not norm.args[_IS_TRAINING]
        and not convolution.args[_IS_TRANSPOSED]
        and len(convolution.users) == 1
        and all(user.target is operator.getitem and user.args[1] == 0 for user in norm.users)
        and all(each is None or code.is_fixed(each) for each in parameters)
        and all(is_single(each) for each in (convolution, *parameters) if each is not None)
    )


def _fold(code: EngineGraph, convolution: fx.Node, norm: fx.Node) -> None:
    _, gain, offset, mean, variance, _, _, epsilon = norm.args
    weight, bias = convolution.args[_WEIGHT : _BIAS + 1]
    assert isinstance(mean, fx.Node)
    assert isinstance(weight, fx.Node)
    channels, weights = mean.meta["val"], weight.meta["val"]

    def add(target: Any, *args: Any, value: torch.Tensor = channels) -> fx.Node:
        return code.insert(convolution, target, args, value)

    scale = add(aten.rsqrt.default, add(aten.add.Tensor, variance, epsilon))
    if gain is not None:
        scale = add(aten.mul.Tensor, scale, gain)
    shift = add(aten.neg.default, mean) if bias is None else add(aten.sub.Tensor, bias, mean)
    shift = add(aten.mul.Tensor, shift, scale)
    if offset is not None:
        shift = add(aten.add.Tensor, shift, offset)
    shape = [-1, *[1] * (weights.dim() - 1)]
    column = torch.empty(channels.shape[0], *shape[1:], dtype=channels.dtype, device="meta")
    by_row = add(aten.reshape.default, scale, shape, value=column)
    scaled = add(aten.mul.Tensor, weight, by_row, value=weights)
    rest = convolution.args[_BIAS + 1 :]
    folded = add(
        _CONVOLUTION,
        convolution.args[0],
        scaled,
        shift,
        *rest,
        value=convolution.meta["val"],
    )
    for result in list(norm.users):
        result.replace_all_uses_with(folded)

"""Convolutions of inference: folded batch norms, and weights in oneDNN's order.

A batch norm in evaluation multiplies each channel by a number and adds another number. Changed
weights and a changed bias of the convolution have the same effect. They depend on sources only, so
that they are computed once (`engine/layout/preparation.py`). If the norm is on another stage, the
convolution's stage computes both.

With channels last, oneDNN computes convolutions with weights packed in its own order. A ReLU after
a convolution stays a separate operation, because oneDNN's ReLU turns NaN into 0.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.layout.channels_last import images_of
from poptorch_emu.ir.arguments import arguments_of, with_arguments

aten = torch.ops.aten

_CONVOLUTION = aten.convolution.default
_NORM = aten.native_batch_norm.default


def fold_norms(code: EngineGraph) -> int:
    """Folds a batch norm into a convolution that only it reads; returns the number of folds."""
    num_changes = 0
    for norm in code.graph.fx.find_nodes(op="call_function", target=_NORM):
        convolution = arguments_of(norm).input
        if convolution.target is _CONVOLUTION and _is_foldable(code, convolution, norm):
            _fold(code, convolution, norm)
            num_changes += 1
    return num_changes


def _is_foldable(code: EngineGraph, convolution: fx.Node, norm: fx.Node) -> bool:
    conv, bn = arguments_of(convolution), arguments_of(norm)
    parameters = [bn.weight, bn.bias, bn.running_mean, bn.running_var, conv.weight, conv.bias]
    return (
        not bn.training
        and not conv.transposed
        and len(convolution.users) == 1
        and all(user.target is operator.getitem and user.args[1] == 0 for user in norm.users)
        and all(each is None or code.is_fixed(each) for each in parameters)
        and all(is_single(each) for each in (convolution, *parameters) if each is not None)
    )


def _fold(code: EngineGraph, convolution: fx.Node, norm: fx.Node) -> None:
    conv, bn = arguments_of(convolution), arguments_of(norm)
    channels, weights = bn.running_mean.meta["val"], conv.weight.meta["val"]

    def add(target: Any, *args: Any, value: torch.Tensor = channels) -> fx.Node:
        return code.insert(convolution, target, args, value)

    scale = add(aten.rsqrt.default, add(aten.add.Tensor, bn.running_var, bn.eps))
    if bn.weight is not None:
        scale = add(aten.mul.Tensor, scale, bn.weight)
    if conv.bias is None:
        shift = add(aten.neg.default, bn.running_mean)
    else:
        shift = add(aten.sub.Tensor, conv.bias, bn.running_mean)
    shift = add(aten.mul.Tensor, shift, scale)
    if bn.bias is not None:
        shift = add(aten.add.Tensor, shift, bn.bias)
    shape = [-1, *[1] * (weights.dim() - 1)]
    column = torch.empty(channels.shape[0], *shape[1:], dtype=channels.dtype, device="meta")
    by_row = add(aten.reshape.default, scale, shape, value=column)
    scaled = add(aten.mul.Tensor, conv.weight, by_row, value=weights)
    args = with_arguments(convolution, weight=scaled, bias=shift)
    folded = add(_CONVOLUTION, *args, value=convolution.meta["val"])
    for result in list(norm.users):
        result.replace_all_uses_with(folded)


def pack_convolutions(code: EngineGraph) -> int:
    """Packs weights of convolutions with channels last; returns the number of convolutions."""
    if not onednn.IS_AVAILABLE:
        return 0
    images = images_of(code.graph)
    changed = [
        node for node in code.graph.operations if node in images and _is_packable(node, code)
    ]
    for node in changed:
        _pack(node, code)
    return len(changed)


def _is_packable(node: fx.Node, code: EngineGraph) -> bool:
    if node.target is not _CONVOLUTION:
        return False
    conv = arguments_of(node)
    is_plain = not conv.transposed and code.is_made_once(conv.weight)
    return is_plain and is_single(conv.input) and is_single(node)


def _pack(node: fx.Node, code: EngineGraph) -> None:
    conv = arguments_of(node)
    place = (conv.padding, conv.stride, conv.dilation, conv.groups)
    shape = list(conv.input.meta["val"].shape)
    weight = conv.weight.meta["val"]
    packed = code.insert(node, onednn.PACK_CONVOLUTION, (conv.weight, *place, shape), weight)
    args: tuple[Any, ...] = (conv.input, packed, conv.bias, *place, "none", [], "")
    result = code.insert(node, onednn.CONVOLUTION, args, node.meta["val"])
    node.replace_all_uses_with(result)

"""Lets oneDNN compute the convolutions of inference with weights in its own order.

That is done for images that lie channels last, of which the graph decides (`channels_last`). A ReLU
behind a convolution stays PyTorch's, since oneDNN's makes 0 of a NaN.
"""

from __future__ import annotations

import torch
from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.engine.engine_graph import EngineGraph, is_single
from poptorch_emu.engine.layout.channels_last import images_of

aten = torch.ops.aten

_CONVOLUTION = aten.convolution.default


def pack_convolutions(code: EngineGraph) -> int:
    """Changes the convolutions of a graph, where images lie channels last; returns how many."""
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
    x, weight, _, _, _, _, is_transposed, _, _ = node.args
    is_plain = not is_transposed and code.is_made_once(weight)
    return is_plain and is_single(x) and is_single(node)


def _pack(node: fx.Node, code: EngineGraph) -> None:
    x, weight, bias, stride, padding, dilation, _, _, groups = node.args
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    shape = list(x.meta["val"].shape)
    packed = code.insert(
        node,
        onednn.PACK_CONVOLUTION,
        (weight, padding, stride, dilation, groups, shape),
        weight.meta["val"],
    )
    result = code.insert(
        node,
        onednn.CONVOLUTION,
        (x, packed, bias, padding, stride, dilation, groups, "none", [], ""),
        node.meta["val"],
    )
    node.replace_all_uses_with(result)

"""Computes in float32 where PyTorch's float16 kernels are slow, and rounds the results.

Products: the float16 kernels also accumulate in float32 and round once. On processors without
float16 multiplication they process single numbers and take about ten times as long as in float32.
On other processors each product has a set-up time, and then computes as fast as in float32.

Squares and maxima have the same bits in both types. PyTorch's float32 kernels compute a square in a
tenth of the time, casts included. For max pooling with channels last, the engine has a float32
kernel of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.layout.channels_last import images_of
from poptorch_emu.ir.arguments import arguments_of
from poptorch_emu.passes.widening import Widener, makes_half, wide_fake
from poptorch_emu.schedule.schedule import Port
from poptorch_emu.trace.fakes.fake_tensors import fake_like

aten = torch.ops.aten

_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}
_MAX_POOL = aten.max_pool2d_with_indices.default


def widen_half_kernels(code: EngineGraph) -> int:
    """Widens slow operations that return float16 numbers; returns the number of operations."""
    slow = [node for node in code.graph.operations if _may_be_slow(node) and makes_half(node)]
    if any(node.target is _MAX_POOL for node in slow):
        images = images_of(code.graph)
        slow = [node for node in slow if node.target is not _MAX_POOL or node in images]
    widener = _Widener(code)
    for node in slow:
        widener.widen(node)
    return len(slow)


def _may_be_slow(node: fx.Node) -> bool:
    # Powers other than squares are rounded more than once, or overflow in between.
    is_square = node.target is aten.pow.Tensor_Scalar and bool(arguments_of(node).exponent == 2)
    return is_square or node.target is _MAX_POOL or node.target in _PRODUCTS


class _Widener(Widener):
    """Widens operations of the engine's graph; each one stays on its stage."""

    def __init__(self, code: EngineGraph) -> None:
        super().__init__(code.graph, self._rounded_to_half)
        self._code = code

    def _place_of(self, user: fx.Node) -> Port:
        return self._code.placed.port_of[user]

    def _cast(self, value: fx.Node, user: fx.Node) -> fx.Node:
        """Casts the matrix behind a transpose, so that one cast serves both tensors."""
        if value.target is aten.t.default:
            whole = self._widened(arguments_of(value).self, user)
            return self._code.insert(user, aten.t.default, (whole,), wide_fake(value.meta["val"]))
        kwargs = {"dtype": torch.float32}
        wide = wide_fake(value.meta["val"])
        return self._code.insert(user, aten._to_copy.default, (value,), wide, kwargs)

    def _rounded_to_half(self, source: fx.Node, like: fx.Node) -> fx.Node:
        operation: Any = source if source in self._code.placed.port_of else source.args[0]
        rounded = self._code.insert(
            operation,
            aten._to_copy.default,
            (source,),
            fake_like(like.meta["val"], torch.float16),
            {"dtype": torch.float16},
        )
        source.append(rounded)
        return rounded

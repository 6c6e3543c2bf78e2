"""Has linear layers of inference read weights that are packed once.

A product copies a part of its weight in each call otherwise. Small ones are made by a kernel of the
engine's (`csrc/numerics/gemm/small_product.h`), large ones by another one (`panel_product.h`), by
PyTorch's library (MKL) or by oneDNN, whichever is faster on the processor. The bias is part of
the call; a ReLU behind it is not, since oneDNN's makes 0 of a NaN. The graph and the processor
decide, whatever the stages and wherever the weight lives, so that the bits do not depend on them.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from poptorch_emu.engine import onednn
from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.rewrites.bias_behind import take_bias_behind
from poptorch_emu.engine.rewrites.large_products import is_onednn_faster
from poptorch_emu.engine.rewrites.linear_layer import LinearLayer, linear_layers
from poptorch_emu.engine.rewrites.packed_weights import has_library, of_one_size, use_packed_weight
from poptorch_emu.schedule.schedule import Port

# Measured with oneDNN on one core with AVX-512, rows x outputs x inputs, gain over `addmm`: 64 x
# 256 x 256 0.93, 128 x 256 x 256 1.00, 256 x 256 x 256 1.04, 8 x 768 x 256 0.82, 64 x 768 x 256
# 1.07, 4 x 1000 x 512 0.90, 16 x 1000 x 512 1.30, 1 x 5000 x 512 0.91, 4 x 5000 x 512 1.76, 256 x
# 5000 x 512 1.10. A call takes 12 us more before it computes.
_FEWEST_MULTIPLICATIONS_OF_ONEDNN = 2**23
# With the library's packing and with oneDNN, on one core of an AMD EPYC with AVX2, where packing is
# a transpose (panels take larger ones there by now): 8 x 768 x 768 0.87 and 1.02, 8 x 4096 x 1024
# 1.19 and 1.57, 16 x 256 x 1024 1.27 and 1.09, 64 x 256 x 256 1.01 and 0.80, 128 x 3072 x 768 1.04
# and 0.95, 256 x 1024 x 256 1.03 and 0.93, 256 x 256 x 1024 1.02 and 0.84, 2048 x 3072 x 768 1.00
# and 0.87. On Intel's processors it gains more, see `packed_weights`.
_FEWEST_ROWS_OF_LIBRARY = 16
_FEWEST_MULTIPLICATIONS_OF_LIBRARY = 2**20


def pack_layers(code: EngineGraph) -> int:
    """Changes linear layers where that pays; returns how many."""
    packed: dict[tuple[fx.Node, int, Port], fx.Node] = {}
    layers = linear_layers(code)
    ours = of_one_size(layer for layer in layers if _is_ours(layer))
    for layer in ours:
        use_packed_weight(layer, code, packed)
    for_onednn = [layer for layer in layers if _is_for_onednn(layer)]
    for layer in for_onednn:
        _pack(layer, code, packed)
    return len(ours) + len(for_onednn)


def _is_ours(layer: LinearLayer) -> bool:
    """Returns whether our operator makes a layer, with a weight that it has packed."""
    return layer.is_small or layer.is_by_panels or _is_for_library(layer)


def _is_for_library(layer: LinearLayer) -> bool:
    return (
        layer.num_rows >= _FEWEST_ROWS_OF_LIBRARY
        and layer.num_multiplications >= _FEWEST_MULTIPLICATIONS_OF_LIBRARY
        and has_library()
        and not is_onednn_faster()
    )


def _is_for_onednn(layer: LinearLayer) -> bool:
    return (
        layer.num_multiplications >= _FEWEST_MULTIPLICATIONS_OF_ONEDNN
        and onednn.IS_AVAILABLE
        and not _is_ours(layer)
    )


def _pack(
    layer: LinearLayer, code: EngineGraph, packed: dict[tuple[fx.Node, int, Port], fx.Node]
) -> None:
    """Changes one layer; `packed` are the weights that are in order already."""
    product, weight = layer.product, layer.wide_weight
    key = weight, layer.num_rows, code.placed.port_of[product]
    if key not in packed:
        packed[key] = code.insert(product, onednn.PACK_LINEAR, key[:2], weight.meta["val"])
    bias = take_bias_behind(product, code) if layer.bias is None else layer.bias
    args: tuple[Any, ...] = (layer.x, packed[key], bias, "none", [], "")
    product.replace_all_uses_with(code.insert(product, onednn.LINEAR, args, product.meta["val"]))

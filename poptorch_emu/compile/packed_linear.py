"""Has linear layers of inference read weights that are packed once.

Small ones are made by a kernel of the engine's (`csrc/numerics/small_product.h`), large ones by
oneDNN, whose weights are packed before a call (see `preparation`). A large product is 4 to 30 %
faster then than the one of PyTorch, which copies a part of the weight in each call. The bias is
part of the call; a ReLU behind it is not, since oneDNN's makes 0 of a NaN. The graph decides,
whatever the stages and wherever the weight lives, so that the bits do not depend on them.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from poptorch_emu.compile import onednn
from poptorch_emu.compile.bias_behind import take_bias_behind
from poptorch_emu.compile.engine_graph import EngineGraph
from poptorch_emu.compile.linear_layer import LinearLayer, linear_layers
from poptorch_emu.compile.packed_weights import of_one_size, use_packed_weight
from poptorch_emu.schedule.schedule import Port

# Multiplications from which it pays. Measured on one core with AVX-512, rows x outputs x inputs,
# gain over `addmm`: 64 x 256 x 256 0.93, 128 x 256 x 256 1.00, 256 x 256 x 256 1.04, 8 x 768 x 256
# 0.82, 64 x 768 x 256 1.07, 4 x 1000 x 512 0.90, 16 x 1000 x 512 1.30, 1 x 5000 x 512 0.91,
# 4 x 5000 x 512 1.76, 256 x 5000 x 512 1.10. A call takes 12 us more before it computes.
_FEWEST_MULTIPLICATIONS = 2**23


def pack_layers(code: EngineGraph) -> int:
    """Changes linear layers where that pays; returns how many."""
    packed: dict[tuple[fx.Node, int, Port], fx.Node] = {}
    layers = linear_layers(code)
    small = of_one_size(layer for layer in layers if layer.is_small)
    for layer in small:
        use_packed_weight(layer, code, packed)
    large = [layer for layer in layers if onednn.IS_AVAILABLE and _is_large(layer)]
    for layer in large:
        _pack(layer, code, packed)
    return len(small) + len(large)


def _is_large(layer: LinearLayer) -> bool:
    return not layer.is_small and layer.num_multiplications >= _FEWEST_MULTIPLICATIONS


def _pack(
    layer: LinearLayer, code: EngineGraph, packed: dict[tuple[fx.Node, int, Port], fx.Node]
) -> None:
    """Changes one layer; `packed` are the weights that are in order already."""
    product, weight = layer.product, layer.weight
    key = weight, layer.num_rows, code.placed.port_of[product]
    if key not in packed:
        packed[key] = code.insert(product, onednn.PACK_LINEAR, key[:2], weight.meta["val"])
    bias = take_bias_behind(product, code) if layer.bias is None else layer.bias
    args: tuple[Any, ...] = (layer.x, packed[key], bias, "none", [], "")
    product.replace_all_uses_with(code.insert(product, onednn.LINEAR, args, product.meta["val"]))

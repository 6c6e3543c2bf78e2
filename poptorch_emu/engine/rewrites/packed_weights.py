"""Lets linear layers read weights that are packed once a window, in inference once.

PyTorch's library (MKL) packs a weight in each product; a kernel of ours, which is faster on some
processors (`csrc/numerics/gemm/panel_product.h`), need not; and a small product takes less time
than to ask the library for one. The packed weight of a layer is made when a micro-batch reads it
first, and again by an update, and takes as much memory as the weight in float32. Gradients of
inputs read the weight in another order: small ones as it is, while large ones would take that
memory once more, so they pack it each time. The graph and the processor decide, whatever the
stages, so that the bits do not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx

from poptorch_emu.engine.engine_graph import EngineGraph
from poptorch_emu.engine.rewrites.bias_behind import take_bias_behind
from poptorch_emu.engine.rewrites.linear_layer import LinearLayer, linear_layers
from poptorch_emu.environment import processor
from poptorch_emu.ir.graph import SourceKind, record_of, source_of
from poptorch_emu.schedule.schedule import Port

_PACK = torch.ops.poptorch_emu.pack_weight.default
_LINEAR = torch.ops.poptorch_emu.packed_linear.default

# Measured on one core of an Intel Xeon with AVX-512, rows x inputs x outputs, speed over a product
# that packs: 16 x 256 x 256 1.7, 16 x 2048 x 512 1.5, 64 x 256 x 256 1.16, 64 x 512 x 2048 1.25,
# 128 x 512 x 512 1.15, 256 x 256 x 256 1.05, 256 x 512 x 2048 1.21, 256 x 2048 x 512 1.14, 512 x
# 512 x 2048 1.08, 1024 x 512 x 2048 1.06, 2048 x 512 x 2048 1.04. Packing takes as long as one to
# two products of 16 rows.
_FEWEST_MULTIPLICATIONS = 2**20
_FEWEST_ROWS = 16
_MOST_ROWS = 512
_FEWEST_PRODUCTS = 4  # in a window
# Measured on one core of an Intel Xeon with AVX-512: a small layer gains 3 to 4 us by product, and
# packing takes 10 us for 2,048 numbers, 24 for 16,384 and 73 for 65,536. So it is paid back by 3
# products of 32 x 64 or 64 x 64, but by 4 to 9 of 128 x 128 and by 5 to 53 of 256 x 256.
_MOST_NUMBERS_BY_PRODUCT = 1024
_FEWEST_ROWS_OF_SMALL = 4


def has_library() -> bool:
    """Returns whether PyTorch's library can read packed weights."""
    return bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def is_packing_faster() -> bool:
    """Returns whether the library's products are faster with weights packed once a window."""
    has_wide_vectors = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_library() and has_wide_vectors and processor("vendor_id") == "GenuineIntel"


def pack_weights(code: EngineGraph) -> int:
    """Changes linear layers where that pays; returns how many."""
    num_products = code.config.gradient_accumulation
    if num_products < _FEWEST_PRODUCTS:
        return 0
    layers = of_one_size(layer for layer in linear_layers(code) if _pays(layer, num_products))
    packed: dict[tuple[fx.Node, int, Port], fx.Node] = {}
    for layer in layers:
        use_packed_weight(layer, code, packed)
    return len(layers)


def of_one_size(layers: Iterable[LinearLayer]) -> list[LinearLayer]:
    """Returns those that read a variable; of one that several read, those of the first's rows.

    Memory holds one packed copy of a variable.
    """
    rows_of: dict[fx.Node, int] = {}
    return [
        layer
        for layer in layers
        if source_of(layer.weight).kind is SourceKind.VARIABLE
        and rows_of.setdefault(layer.weight, layer.num_rows) == layer.num_rows
    ]


def _pays(layer: LinearLayer, num_products: int) -> bool:
    if layer.is_small:
        num_numbers = layer.weight.meta["val"].numel()
        is_soon_packed = num_numbers <= num_products * _MOST_NUMBERS_BY_PRODUCT
        return is_soon_packed and layer.num_rows >= _FEWEST_ROWS_OF_SMALL
    is_large = layer.num_multiplications >= _FEWEST_MULTIPLICATIONS
    is_for_library = is_large and _FEWEST_ROWS <= layer.num_rows <= _MOST_ROWS
    return layer.is_by_panels or (is_for_library and is_packing_faster())


def use_packed_weight(
    layer: LinearLayer, code: EngineGraph, packed: dict[tuple[fx.Node, int, Port], fx.Node]
) -> None:
    """Changes one layer; `packed` are the weights that are packed already."""
    product, weight = layer.product, layer.wide_weight.meta["val"]
    key = layer.weight, layer.num_rows, code.placed.port_of[product]
    if key not in packed:
        packing = code.insert(product, _PACK, (layer.weight, layer.num_rows), weight)
        # What is wished for the layer is not for the weight.
        record = replace(record_of(packing), is_checkpoint=False, recomputed_call=0)
        packing.meta["record"] = record
        packed[key] = packing
    bias = take_bias_behind(product, code) if layer.bias is None else layer.bias
    args = (layer.x, packed[key], bias, weight.shape[0])
    product.replace_all_uses_with(code.insert(product, _LINEAR, args, product.meta["val"]))

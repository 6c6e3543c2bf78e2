"""Narrows 64-bit outputs to int32 and float32, as on an IPU."""

from __future__ import annotations

import torch

from poptorch_emu.ir.graph import Graph, SinkKind, record_of

# Source: PopTorch's numeric types: int64 and float64 do not exist on the device.
NARROW = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}

_TO_HOST = (SinkKind.OUTPUT, SinkKind.ANCHOR)


def run(graph: Graph) -> Graph:
    """Casts the outputs of `graph` in place and returns it."""
    (output,) = graph.fx.find_nodes(op="output")
    results = []
    for sink, node in graph.results:
        value = node.meta["val"]
        if sink.kind in _TO_HOST and value.dtype in NARROW:
            dtype = NARROW[value.dtype]
            form = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
            with graph.fx.inserting_before(output):
                node = graph.add_operation(
                    torch.ops.aten._to_copy.default,
                    (node,),
                    {"dtype": dtype},
                    form,
                    record_of(node),
                )
        results.append((sink, node))
    graph.set_results(results)
    return graph

"""Names the tensors of a graph, and adds a result for each tensor that the user anchored.

A parameter or buffer has its dotted name. The gradient of one micro-batch is `Gradient___<name>`,
and the inputs are `input`, `input/1`, ... The result of an operation is named by the user's name
scopes, its module and its type, for example `encoder/fc/Gemm:0`. A repeated name gets `/1`, `/2`,
...
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence

import torch
from torch import fx

from poptorch_emu.config import AnchorConfig
from poptorch_emu.ir.graph import Graph, Sink, SinkKind, SourceKind, record_of, source_of
from poptorch_emu.ir.record import Phase
from poptorch_emu.torch_versions import OpOverload
from poptorch_emu.update.formulas.loss_scale import FACTOR

# PopTorch's names end with the ONNX type. Operators that are not listed keep their ATen name.
_ONNX_TYPES = {
    "convolution": "Conv",
    "addmm": "Gemm",
    "mm": "MatMul",
    "bmm": "MatMul",
    "_softmax": "Softmax",
    "_log_softmax": "LogSoftmax",
    "native_layer_norm": "LayerNormalization",
    "native_batch_norm": "BatchNormalization",
    "_native_batch_norm_legit": "BatchNormalization",
    "_native_batch_norm_legit_functional": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "embedding": "Gather",
    "max_pool2d_with_indices": "MaxPool",
}


def gradient_name(parameter: str) -> str:
    """Returns the name of a parameter's gradient of one micro-batch."""
    return f"Gradient___{parameter}"


def run(graph: Graph, anchors: Sequence[AnchorConfig], names_modules: bool = True) -> Graph:
    """Adds a result for each anchor whose tensor is in `graph`, in place, and returns it."""
    if anchors:
        nodes = tensor_names(graph, names_modules)
        found = [
            (Sink(SinkKind.ANCHOR, anchor.short_name), nodes[anchor.long_name])
            for anchor in anchors
            if anchor.long_name in nodes
        ]
        graph.set_results([*graph.results, *found])
    return graph


def tensor_names(graph: Graph, names_modules: bool = True) -> dict[str, fx.Node]:
    """Returns the tensors of `graph` that can be anchored, by name.

    Args:
        graph: graph after all passes that remove operations.
        names_modules: whether an operation's name contains the path of its module.
    """
    names: dict[str, fx.Node] = {}
    seen: Counter[str] = Counter()
    for node in graph.fx.nodes:
        name = _name_of(node, names_modules)
        if name is not None:
            names[f"{name}/{seen[name]}" if seen[name] else name] = node
            seen[name] += 1
    for sink, node in graph.results:
        if sink.kind is SinkKind.GRADIENT:
            names[gradient_name(sink.name)] = node
    return names


def _name_of(node: fx.Node, names_modules: bool) -> str | None:
    if node.op == "placeholder":
        source = source_of(node)
        if source.kind is SourceKind.INPUT:
            return "input"
        is_of_model = source.kind is SourceKind.VARIABLE and source.name != FACTOR
        return source.name if is_of_model else None
    if node.op != "call_function" or not isinstance(node.meta["val"], torch.Tensor):
        return None
    if node.target is operator.getitem:
        return f"{operation_name(node.args[0], names_modules)}:{node.args[1]}"
    return f"{operation_name(node, names_modules)}:0"


def operation_name(node: object, names_modules: bool = True) -> str:
    """Returns the name of an operation: scopes, the path of its module, and its type."""
    assert isinstance(node, fx.Node), "a selection takes from an operation"
    target, record = node.target, record_of(node)
    assert isinstance(target, OpOverload), "operations are those of ATen and ours"
    plain = target._schema.name.rpartition("::")[2]
    title = "".join(word.capitalize() for word in plain.strip("_").split("_"))
    parts = [record.scope] if record.scope else []
    if names_modules and record.module:
        parts += record.module.split(".")
    if record.phase is Phase.BACKWARD:
        parts.append("Backward")
    return "/".join([*parts, _ONNX_TYPES.get(plain, title)])

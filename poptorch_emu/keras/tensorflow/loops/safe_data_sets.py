"""Decides which data sets of TensorFlow may be read several elements at a time.

If one element fails, all elements that are read together with it are lost. Also, a variable that
the program assigns must affect the elements after the assignment only.
"""

from __future__ import annotations

from typing import Any

# Kinds of data sets that hold elements in memory, or transform those of others. All other kinds may
# fail, because they read files, call Python or check shapes.
_KINDS = {
    "Batch", "Cache", "Concatenate", "Filter", "Map", "Options", "ParallelBatch", "ParallelMap",
    "Prefetch", "Range", "Repeat", "Shard", "Shuffle", "Skip", "Take", "Tensor", "TensorSlice",
    "Zip",
}  # fmt: skip
# Operations in functions of data sets that cannot fail if shapes are known.
_OPERATIONS = {
    "Abs", "Add", "AddV2", "ArgMax", "BroadcastTo", "Cast", "ConcatV2", "Const", "Cos", "Equal",
    "Exp", "ExpandDims", "Greater", "GreaterEqual", "Identity", "Less", "LessEqual", "Log", "Log1p",
    "LogicalAnd", "LogicalNot", "LogicalOr", "Max", "Maximum", "Mean", "Min", "Minimum", "Mul",
    "Neg", "NoOp", "NotEqual", "OneHot", "Pack", "Placeholder", "Prod", "RandomStandardNormal",
    "RandomUniform", "RealDiv", "Reshape", "ReverseV2", "Rsqrt", "Select", "SelectV2", "Shape",
    "Sigmoid", "Sin", "Sqrt", "Square", "SquaredDifference", "Squeeze", "StridedSlice", "Sub",
    "Sum", "Tanh", "Tile", "Transpose", "TruncatedNormal", "Unpack", "ZerosLike",
}  # fmt: skip
_HANDLES = {"resource", "variant"}


def can_be_bundled(dataset: Any) -> bool:
    """Returns whether creating an element of a data set can never fail or depend on time.

    If this is unknown, the result is false.
    """
    remaining = [dataset]
    while remaining:
        each = remaining.pop()
        kind = type(each).__name__.removeprefix("_").removesuffix("Dataset")
        if kind not in _KINDS or vars(each).get("_filename", b"") != b"":
            return False
        try:
            remaining += each._inputs()
            graphs = [function.function.graph for function in each._functions()]
        except AttributeError:
            return False
        operations = (one for graph in graphs for one in graph.get_operations())
        if not all(map(_cannot_fail, operations)):
            return False
    return True


def _cannot_fail(operation: Any) -> bool:
    return operation.type in _OPERATIONS and all(
        output.shape.is_fully_defined() and output.dtype.name not in _HANDLES
        for output in operation.outputs
    )

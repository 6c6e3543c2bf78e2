"""Whether functions of Python make the elements of a data set of TensorFlow."""

from __future__ import annotations

from typing import Any

# Part of the names of all operations of TensorFlow that call Python.
_CALL_OF_PYTHON = b"PyFunc"


def calls_python(dataset: Any) -> bool:
    """Returns whether a data set, or one that it is made of, calls Python.

    A data set of which that is not known counts as one that does.
    """
    remaining = [dataset]
    while remaining:
        each = remaining.pop()
        try:
            remaining += each._inputs()
            graphs = [function.function.graph for function in each._functions()]
        except AttributeError:
            return True
        if any(_CALL_OF_PYTHON in graph.as_graph_def().SerializeToString() for graph in graphs):
            return True
    return False

"""Titles of operations for reports: the module and the plain name of the operator.

Names of nodes in a graph, such as `mm_default_12`, do not tell the node's module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import fx

from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.plan.operations.operation_family import bare_name

# Prefixes and suffixes of kernels' names, which the functions that users call do not have.
_KERNEL = re.compile(
    r"^_*(?:(?:native|unsafe|thnn|cudnn)_)?|_(?:flash|efficient)(?=_attention)|_for_cpu"
)


def titles_of(graph: Graph) -> dict[fx.Node, str]:
    """Returns the title of each operation, including those in bodies of loops and branches.

    All titles differ: for example, the second `add` of a module is "encoder.0: add 2".
    """
    titles = {}
    count: Counter[str] = Counter()
    for node in _operations(graph):
        title = title_of(record_of(node).module, bare_name(node))
        count[title] += 1
        titles[node] = title if count[title] == 1 else f"{title} {count[title]}"
    return titles


def title_of(module: str, operator: str) -> str:
    """Returns a title: the path of a module, and the plain name of an operator that runs in it."""
    plain = _KERNEL.sub("", operator)
    return f"{module}: {plain}" if module else plain


def accumulation_title(weight: str) -> str:
    """Returns the title of the addition of a gradient to the weight's accumulator."""
    module, _, name = weight.rpartition(".")
    return title_of(module, f"accumulate {name}")


def _operations(graph: Graph) -> Iterator[fx.Node]:
    yield from graph.operations
    for region in graph.regions.values():
        yield from _operations(region)

"""How people know an operation: by its module, and by its operator's plain name.

Nodes of a graph have names of their own, such as `mm_default_12`, which tell nobody where they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import fx

from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.plan.operations.operation_family import bare_name

# What the names of kernels have beside those of the functions that users call.
_KERNEL = re.compile(
    r"^_*(?:(?:native|unsafe|thnn|cudnn)_)?|_(?:flash|efficient)(?=_attention)|_for_cpu"
)


def titles_of(graph: Graph) -> dict[fx.Node, str]:
    """Returns the title of each operation, those of bodies of loops and branches included.

    No two are the same: of those of one module and operator the second is "encoder.0: add 2".
    """
    titles = {}
    count: Counter[str] = Counter()
    for node in _operations(graph):
        title = title_of(record_of(node).module, bare_name(node))
        count[title] += 1
        titles[node] = title if count[title] == 1 else f"{title} {count[title]}"
    return titles


def title_of(module: str, operator: str) -> str:
    """Returns the path of a module and the plain name of an operator that runs in it."""
    plain = _KERNEL.sub("", operator)
    return f"{module}: {plain}" if module else plain


def accumulation_title(weight: str) -> str:
    """Returns the title of what adds a gradient of a weight to those before it."""
    module, _, name = weight.rpartition(".")
    return title_of(module, f"accumulate {name}")


def _operations(graph: Graph) -> Iterator[fx.Node]:
    yield from graph.operations
    for region in graph.regions.values():
        yield from _operations(region)

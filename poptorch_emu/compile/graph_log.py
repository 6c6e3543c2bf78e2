"""Logs the graph of a compilation as an environment variable demands."""

from __future__ import annotations

import logging

from poptorch_emu.environment import integer_of
from poptorch_emu.ir.graph import Graph
from poptorch_emu.ir.text import to_text
from poptorch_emu.log import compiler_logger

_LENGTH = "POPTORCH_MAX_GRAPH_LEN"
_NUM_LINES = 10  # Source: PopTorch's default.


def log_graph(graph: Graph) -> None:
    """Logs the last lines of a graph at level TRACE (exact).

    `POPTORCH_MAX_GRAPH_LEN` is the number of lines; 0 and less stand for all.

    Raises:
        Error: the variable is not an integer.
    """
    if not compiler_logger.isEnabledFor(logging.DEBUG):
        return
    length, lines = integer_of(_LENGTH, _NUM_LINES), to_text(graph).splitlines()
    shown = lines[-length:] if length > 0 else lines
    compiler_logger.debug(
        "Graph, last %d of %d lines (%s):\n%s", len(shown), len(lines), _LENGTH, "\n".join(shown)
    )

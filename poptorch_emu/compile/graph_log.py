"""What environment variables ask a compilation to show of its graph."""

from __future__ import annotations

import logging
import os

from poptorch_emu.environment import integer_of
from poptorch_emu.ir.graph import Graph
from poptorch_emu.ir.text import to_text
from poptorch_emu.log import compiler_logger, logger

_LENGTH = "POPTORCH_MAX_GRAPH_LEN"
_NUM_LINES = 10  # Source: PopTorch's default.
_EXPORT = ("POPTORCH_EXPORT_PROTO_FILE", "POPTORCH_EXPORT_PROTO_AS_BINARY")


def log_graph(graph: Graph) -> None:
    """Logs the last lines of a graph at level TRACE (exact).

    `POPTORCH_MAX_GRAPH_LEN` says how many; 0 and less stand for all.

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


def note_export() -> None:
    """Says that no ONNX file is written, if the environment asks for one (accepted)."""
    for variable in _EXPORT:
        if os.environ.get(variable):
            logger.info(
                "%s is accepted and has no effect: there is no ONNX model here. "
                "Options.enableProfiling() writes the graph as text.",
                variable,
            )

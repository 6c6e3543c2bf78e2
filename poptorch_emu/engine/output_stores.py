"""Adds the outputs of a program; an output of joined micro-batches may need several stores."""

from __future__ import annotations

from poptorch_emu import _C
from poptorch_emu.config import AnchorConfig
from poptorch_emu.ir.graph import Sink


class OutputStores:
    """Adds outputs to a program; `anchors` lists the names of the anchors, in order."""

    def __init__(self, program: _C.Program) -> None:
        self.anchors: list[str] = []
        self._program = program
        self._last = -1

    def add(
        self, sink: Sink, segment: int, register: int, mode: _C.OutputMode, period: int
    ) -> None:
        """Adds an output with its first piece, or another piece of the output added last."""
        if sink.piece > 0:
            self._program.store_piece(segment, register, self._last, sink.piece)
        else:
            count = sink.num_pieces
            self._last = self._program.store_output(segment, register, mode, period, count)

    def add_anchor(self, sink: Sink, segment: int, register: int, anchor: AnchorConfig) -> None:
        """Adds an output for a value that the user anchors by name."""
        mode = _C.OutputMode(int(anchor.output_mode))
        self.add(sink, segment, register, mode, anchor.return_period)
        if sink.piece == 0:
            self.anchors.append(anchor.short_name)

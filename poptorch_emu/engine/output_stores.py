"""The outputs of a program, each in as many stores as its micro-batches are joined in pieces."""

from __future__ import annotations

from poptorch_emu import _C
from poptorch_emu.config import AnchorConfig
from poptorch_emu.ir.graph import Sink


class OutputStores:
    """Adds outputs to a program; `anchors` has the names of those that are anchors, in order."""

    def __init__(self, program: _C.Program) -> None:
        self.anchors: list[str] = []
        self._program = program
        self._last = -1

    def add(
        self, sink: Sink, segment: int, register: int, mode: _C.OutputMode, period: int
    ) -> None:
        """Adds an output with its first piece, or a further piece of the last output."""
        if sink.piece > 0:
            self._program.store_piece(segment, register, self._last, sink.piece)
        else:
            count = sink.num_pieces
            self._last = self._program.store_output(segment, register, mode, period, count)

    def add_anchor(self, sink: Sink, segment: int, register: int, anchor: AnchorConfig) -> None:
        """Does the same for a value that the user looks at by its name."""
        mode = _C.OutputMode(int(anchor.output_mode))
        self.add(sink, segment, register, mode, anchor.return_period)
        if sink.piece == 0:
            self.anchors.append(anchor.short_name)

"""Records plain PyTorch functions that are no part of the user's model, such as updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch

from poptorch_emu.ir.graph import Graph, Sink, Source
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.trace.fake_mode import FakeMode
from poptorch_emu.trace.fakes import FakeMaker
from poptorch_emu.trace.recorder import IPU, Recorder

# No size of a template may be mistaken for a number of the function.
TEMPLATE_SHAPE = (3, 5)


class Template:
    """A graph in the making, of which all operations belong to the update."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._record = NodeRecord(phase=Phase.UPDATE)
        self._recorder = Recorder(self.graph, lambda: self._record)
        self._fake_mode = FakeMode()

    def source(
        self, source: Source, dtype: torch.dtype, shape: tuple[int, ...] = TEMPLATE_SHAPE
    ) -> torch.Tensor:
        """Returns a stand-in for a value that the graph is given."""
        value = FakeMaker(IPU).empty(self._fake_mode, shape, dtype)
        self._recorder.add_source(source, value, self._record)
        return value

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Writes down what runs inside."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._fake_mode)
            stack.enter_context(self._recorder)
            yield

    def finish(self, results: Mapping[Sink, torch.Tensor]) -> Graph:
        """Returns the graph, which ends with `results`; each must come from an operation."""
        pairs = []
        for sink, value in results.items():
            node = self._recorder.find(value)
            assert node is not None, f"{sink} was made without an operation"
            pairs.append((sink, node))
        self.graph.set_results(pairs)
        return self.graph

"""Records the body of a loop or a branch as a region of the graph that is being traced.

One trace runs at a time in a process; `recording` makes its recorder known to the operations that
need one. What a body reads from outside is found by the recorder and becomes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import FakeTensorMode
from poptorch_emu.trace.fakes import FakeMaker
from poptorch_emu.trace.recorder import IPU, Recorder

Tensors = list[torch.Tensor]
HostFunction = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Region:
    """A body that was recorded.

    Attributes:
        name: its name among the regions of the graph.
        graph: its operations.
        outputs: what it returned; fakes that mean nothing outside.
        captured: the tensors from outside that it reads.
    """

    name: str
    graph: Graph
    outputs: Tensors
    captured: Tensors

    def return_parameters(self, count: int) -> None:
        """Makes the first `count` parameters further results."""
        results = list(self.graph.results)
        sources = {source_of(node).name: node for node in self.graph.sources}
        for number in range(count):
            sink = Sink(SinkKind.OUTPUT, str(len(results)))
            results.append((sink, sources[str(number)]))
        self.graph.set_results(results)


@dataclass
class Recording:
    """The trace in progress, for the operations that do more than run tensor operations.

    Attributes:
        is_training: whether gradients are wanted.
        num_replicas: how many replicas will run what is traced, those of other processes included.
        is_apart: whether other processes run it, too, each on its own.
        host_functions: what runs on the host in the middle of the graph, by name.
        present_value: returns the value that a tensor would have with the weights of now, `None` if
            it depends on inputs.
        copied_parts: for a part taken with an index that only a run has, the user's line.
    """

    recorder: Recorder
    fake_mode: FakeTensorMode
    is_training: bool
    num_replicas: int = 1
    is_apart: bool = False
    present_value: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None
    host_functions: dict[str, HostFunction] = field(default_factory=dict)
    copied_parts: dict[fx.Node, str] = field(default_factory=dict)


_active: Recording | None = None


@contextmanager
def recording(state: Recording) -> Iterator[None]:
    """Makes `state` the trace that regions belong to."""
    global _active
    _active = state
    try:
        yield
    finally:
        _active = None


def current() -> Recording:
    """Returns the trace in progress; to be asked only while a model is traced."""
    assert _active is not None, "regions are recorded only during a trace"
    return _active


def record_region(
    name: str,
    parameters: Sequence[torch.Tensor],
    body: Callable[[Tensors], Tensors],
    repeats: str = "",
) -> Region:
    """Runs `body` once and keeps its operations as a region.

    Args:
        name: a word for its kind; the region gets a unique name that begins so.
        parameters: tensors of the shapes and types with which the region will be run.
        body: takes a stand-in of each parameter.
        repeats: the name of a region that this one computes again, with the same random numbers.
    """
    state = current()
    with state.recorder.region(len(parameters)) as scope:
        fakes = FakeMaker(IPU)
        stand_ins: Tensors = [
            fakes.empty(state.fake_mode, parameter.shape, parameter.dtype)
            for parameter in parameters
        ]
        for number, stand_in in enumerate(stand_ins):
            scope.add_source(Source(SourceKind.INPUT, str(number)), stand_in, NodeRecord())
        outputs = body(stand_ins)
        nodes = [state.recorder.node_of(output) for output in outputs]
        scope.graph.set_results(
            (Sink(SinkKind.OUTPUT, str(number)), node) for number, node in enumerate(nodes)
        )
    scope.graph.repeats = repeats
    return Region(
        state.recorder.add_region(name, scope.graph), scope.graph, outputs, scope.captured
    )

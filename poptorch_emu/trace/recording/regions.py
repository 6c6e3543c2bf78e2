"""Records the body of a loop or a branch as a region of the graph that is being traced.

One trace runs at a time in a process. `recording` makes its recorder available to the operations
that need one. The recorder turns the outside tensors that a body reads into parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import fx

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind, source_of
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import FakeTensorMode
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker
from poptorch_emu.trace.recording.recorder import IPU, Recorder

Tensors = list[torch.Tensor]
HostFunction = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Region:
    """A recorded body of a loop or a branch.

    Attributes:
        name: name of the region in the graph.
        graph: graph of the body.
        outputs: fake tensors that the body returned; only valid inside the region.
        captured: tensors from outside that the body reads.
    """

    name: str
    graph: Graph
    outputs: Tensors
    captured: Tensors

    def return_parameters(self, count: int) -> None:
        """Adds the first `count` parameters to the results."""
        results = list(self.graph.results)
        sources = {source_of(node).name: node for node in self.graph.sources}
        for number in range(count):
            sink = Sink(SinkKind.OUTPUT, str(len(results)))
            results.append((sink, sources[str(number)]))
        self.graph.set_results(results)


@dataclass
class Recording:
    """The trace in progress, for functions that need more than tensor operations.

    Attributes:
        is_training: whether gradients are recorded.
        num_replicas: number of replicas that will run the graph, in all processes.
        is_apart: whether other processes run the graph independently.
        host_functions: functions that the graph calls on the host, by name.
        present_value: returns a tensor's value with the current weights, or None if unknown.
        copied_parts: the user's line for each part of a tensor that a tensor index selects.
    """

    recorder: Recorder
    fake_mode: FakeTensorMode
    is_training: bool
    num_replicas: int = 1
    is_apart: bool = False
    present_value: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None
    host_functions: dict[str, HostFunction] = field(default_factory=dict)
    copied_parts: dict[fx.Node, str] = field(default_factory=dict)


class _OfThread(threading.local):
    """The recording of the trace that a thread runs."""

    active: Recording | None = None


_of_thread = _OfThread()


@contextmanager
def recording(state: Recording) -> Iterator[None]:
    """Makes `state` the trace that regions belong to."""
    _of_thread.active = state
    try:
        yield
    finally:
        _of_thread.active = None


def current() -> Recording:
    """Returns the trace in progress; to be asked only while a model is traced."""
    assert _of_thread.active is not None, "regions are recorded only during a trace"
    return _of_thread.active


def record_region(
    name: str,
    parameters: Sequence[torch.Tensor],
    body: Callable[[Tensors], Tensors],
    repeats: str = "",
) -> Region:
    """Runs `body` once and stores its operations as a region.

    Args:
        name: kind of the region, the beginning of its unique name.
        parameters: tensors with the shapes and types of the region's parameters.
        body: function of one fake tensor for each parameter.
        repeats: name of a region that this one recomputes with the same random numbers; "" if none.
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

"""Runs one window on the engine and records the value of each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from poptorch_emu.compile.compiler import Observe, Request
from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import CompileConfig
from poptorch_emu.errors import make_error
from poptorch_emu.ir.graph import Graph, SinkKind, SourceKind
from poptorch_emu.numbers.graph_values import observed_values, select_masks
from poptorch_emu.numbers.run import (
    FIRST,
    Direction,
    Progress,
    Sink,
    given,
    named,
    state_name,
    unseen,
    updated_name,
)
from poptorch_emu.passes import observers
from poptorch_emu.runtime.session import Session
from poptorch_emu.trace.recording.regions import HostFunction

# Compiles a request, with calls of the host that `Observe` adds to its graph.
MakeObserved = Callable[[Request, Observe], Executable]


@dataclass(frozen=True)
class Start:
    """The state of a model at the start of a window.

    Attributes:
        weights: the model's parameters and buffers, by name.
        states: tensors of the optimiser's state, by name.
        seed: seed of the random numbers.
    """

    weights: Mapping[str, torch.Tensor]
    states: Mapping[str, torch.Tensor]
    seed: int


@dataclass(frozen=True)
class ObservedGraph:
    """The graph that the engine ran.

    Attributes:
        graph: lowered graph, without the calls of the host that recorded its values.
        numbers: number of each recorded node's value in the run.
        config: configuration of the window.
    """

    graph: Graph
    numbers: Mapping[fx.Node, int]
    config: CompileConfig


def one_window(request: Request) -> Request:
    """Returns a request for the first window of a call, without cache, profile and anchors."""
    config = replace(request.config, cache_dir=None, profile_dir=None, anchors=())
    windows = config.device_iterations
    if not config.is_training or windows == 1:
        return replace(request, config=config)

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() == 0 else tensor.narrow(0, 0, tensor.size(0) // windows)

    arguments = request.arguments
    return replace(
        request,
        config=replace(config, device_iterations=1, output_return_period=1),
        tensors=[first(tensor) for tensor in request.tensors],
        arguments=lambda function: arguments(lambda tensor: function(first(tensor))),
    )


def num_places(config: CompileConfig) -> int:
    """Returns the number of micro-batches in a window, over all replicas."""
    return config.num_micro_batches * config.replication_factor


def run_engine(
    request: Request, start: Start, make: MakeObserved, sink: Sink, progress: Progress = unseen
) -> ObservedGraph:
    """Runs a window and gives `sink` all values; the user's model stays unchanged.

    Args:
        request: model and inputs of one window.
        start: weights and state at the start of the window.
        make: function that compiles the request.
        sink: receiver of the values while the window runs.
        progress: display of the number of values so far.

    Raises:
        Error: the model runs in several processes, or cannot be captured.
    """
    if request.config.num_processes > 1:
        raise make_error(
            f"The model is one of {request.config.num_processes} processes, of which none has all "
            "numbers. Run it in one process, with Options.replicationFactor."
        )
    observation = _Observation(sink)
    executable = make(request, observation.of)
    for name, tensor in start.weights.items():
        if name not in observation.names:
            sink.add(sink.declare(given(name, tensor)), FIRST, tensor)
    session = Session(executable)
    session.upload(start.weights)
    session.write_states(start.states)
    if request.optimizer is not None:
        session.set_hyper_parameters(request.optimizer)
    session.set_seed(start.seed)
    # The run gets copies, because a program may write to its inputs.
    count = len(observation.numbers) * num_places(request.config)
    with progress("This run", count) as observation.on_value:
        session.run([tensor.detach().clone() for tensor in request.tensors])
    _take_updates(session, start, sink)
    return ObservedGraph(executable.graph, observation.numbers, request.config)


class _Observation:
    """Calls of the host that record the values of a graph."""

    def __init__(self, sink: Sink) -> None:
        self.numbers: dict[fx.Node, int] = {}
        self.names: set[str] = set()
        self.on_value: Callable[[], object] = lambda: None
        self._sink = sink

    def of(self, graph: Graph) -> dict[str, HostFunction]:
        """Adds a call of the host for each value of a graph, and returns the functions by name."""
        select_masks(graph)
        values = observed_values(graph)
        self.names = {value.name for value in values.values()}
        self.numbers = {node: self._sink.declare(value) for node, value in values.items()}
        nodes = {f"observed value {number}": node for node, number in self.numbers.items()}
        if nodes:
            observers.run(graph, nodes)
        return {
            name: self._function(number)
            for name, number in zip(nodes, self.numbers.values(), strict=True)
        }

    def _function(self, number: int) -> HostFunction:
        def see(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            value, state = inputs
            position = int(state[observers.MICRO_BATCH]), int(state[observers.REPLICA])
            self._sink.add(number, position, value)
            self.on_value()
            return []

        return see


def _take_updates(session: Session, start: Start, sink: Sink) -> None:
    """Records each weight that the window trained, and the optimiser's state."""
    graph = session.executable.graph
    trained = [s.name for s in graph.sinks if s.kind is SinkKind.GRADIENT]
    updated = {name: start.weights[name].detach().clone() for name in trained}
    session.download(updated)
    for name, tensor in updated.items():
        value = named(updated_name(name), Direction.UPDATE, tensor)
        sink.add(sink.declare(value), FIRST, tensor)
    for name, tensor in sorted(session.read_states().items()):
        value = named(state_name(name), Direction.UPDATE, tensor)
        sink.add(sink.declare(value), FIRST, tensor)


def written_buffers(graph: Graph) -> frozenset[str]:
    """Returns the names of the variables that forward assigns."""
    own = {s.name for s in graph.sinks if s.kind is SinkKind.VARIABLE}
    return frozenset(own & {s.meta["source"].name for s in graph.sources if
                            s.meta["source"].kind is SourceKind.VARIABLE})  # fmt: skip

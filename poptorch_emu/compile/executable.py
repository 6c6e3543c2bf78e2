"""What a compilation yields: the program with its plan and the names by which the host knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.compile.key import Key
from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.graph import Graph
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Schedule


@dataclass(frozen=True)
class VariableInfo:
    """One variable on the device.

    Attributes:
        index: its number in the program.
        name: dotted name of the parameter or buffer, or "<state>___<parameter>".
        initial: the value of a new optimiser state; parameters and buffers have none.
        is_per_replica: whether each replica has its own.
        group: index of the optimiser's group, of an optimiser state.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_per_replica: bool
    initial: float | None = None

    @property
    def is_state(self) -> bool:
        """Whether this is a state of the optimiser."""
        return self.initial is not None


@dataclass(frozen=True)
class PlacedGraph:
    """The graph that was lowered, and which stage runs what of it."""

    graph: Graph
    partition: Partition


@dataclass(frozen=True)
class Executable:
    """A compiled model.

    Attributes:
        program: what the engine runs.
        key: what it was compiled from.
        look_up: returns the placed graph; read from a file, it is rebuilt only when asked for.
        outputs: what `forward` returned, with placeholders for tensors.
        num_outputs: tensors the program returns that belong to `outputs`, in order.
        host_outputs: outputs that never were on the device, by position among all tensors.
        written_inputs: inputs that the program changes; their values follow the outputs.
        scalars: number of each hyper-parameter in the program, by name and group.
    """

    program: _C.Program
    config: CompileConfig
    key: Key
    look_up: Callable[[], PlacedGraph]
    schedule: Schedule
    outputs: Any
    num_outputs: int
    host_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    written_inputs: tuple[int, ...] = ()
    variables: dict[str, VariableInfo] = field(default_factory=dict)
    scalars: dict[tuple[str, int], int] = field(default_factory=dict)
    segment_names: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """The graph that was lowered."""
        return self._placed.graph

    @property
    def partition(self) -> Partition:
        """Which stage runs which operation of the graph."""
        return self._placed.partition

    @cached_property
    def _placed(self) -> PlacedGraph:
        return self.look_up()

    @property
    def num_windows(self) -> int:
        """How many windows of the schedule one call runs."""
        return self.config.device_iterations if self.config.is_training else 1

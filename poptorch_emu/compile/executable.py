"""What a compilation yields: the program with its plan and the names by which the host knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.compile.stored.key import Key
from poptorch_emu.config import CompileConfig, TargetKind
from poptorch_emu.ir.graph import Graph
from poptorch_emu.machine.tile_memory import TileMemory
from poptorch_emu.plan.memory.memory_plan import MemoryPlan
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Schedule
from poptorch_emu.schedule.transfers import Transfer
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.trace.regions import HostFunction
from poptorch_emu.trace.value_guards import ValueGuards


@dataclass(frozen=True)
class PlacedGraph:
    """The graph that was lowered, which stage runs what of it, and what each IPU holds for that.

    Attributes:
        transfers: inputs and outputs that cross while the IPUs compute.
        tiles: what the tiles of the machine would hold.
    """

    graph: Graph
    partition: Partition
    memory: MemoryPlan
    transfers: tuple[Transfer, ...]
    tiles: TileMemory


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
        host_functions: what the program calls on the host, by name.
        scalars: number of each hyper-parameter in the program, by name and group.
        ipus_per_replica: how many IPUs the model uses, idle ones between included.
        is_random: whether the program draws random numbers.
        anchors: short names of the tensors that the program returns last, in order.
        tensor_names: what `Options.anchorTensor` can name, sorted.
        batch_counts: how much a micro-batch adds to the host's buffers of integers, by name.
        guards: for which values of inputs the program holds.
        shortages: which tiles of the machine could not hold what they must, in words.
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
    host_functions: dict[str, HostFunction] = field(default_factory=dict)
    ipus_per_replica: int = 1
    is_random: bool = False
    anchors: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()
    batch_counts: Mapping[str, int] = field(default_factory=dict)
    guards: ValueGuards = field(default_factory=ValueGuards)
    shortages: tuple[str, ...] = ()

    @property
    def num_ipus(self) -> int:
        """How many IPUs all replicas take; on the virtual system a power of two."""
        used = self.ipus_per_replica * self.config.replication_factor
        is_rounded = self.config.target is TargetKind.HARDWARE
        return 1 << (used - 1).bit_length() if is_rounded else used

    @property
    def has_device_work(self) -> bool:
        """Whether anything happens on the device; otherwise every output is a constant."""
        return bool(self.num_outputs or self.variables or self.written_inputs or self.anchors)

    @property
    def graph(self) -> Graph:
        """The graph that was lowered."""
        return self._placed.graph

    @property
    def partition(self) -> Partition:
        """Which stage runs which operation of the graph."""
        return self._placed.partition

    @property
    def memory(self) -> MemoryPlan:
        """What each IPU holds."""
        return self._placed.memory

    @property
    def tiles(self) -> TileMemory:
        """What the tiles of the machine would hold."""
        return self._placed.tiles

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Inputs and outputs that cross while the IPUs compute."""
        return self._placed.transfers

    @cached_property
    def _placed(self) -> PlacedGraph:
        return self.look_up()

    @property
    def num_windows(self) -> int:
        """How many windows of the schedule one call runs."""
        return self.config.device_iterations if self.config.is_training else 1

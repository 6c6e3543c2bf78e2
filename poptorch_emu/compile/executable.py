"""The result of a compilation: the program, its plans, and the names that the host uses."""

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
from poptorch_emu.trace.capture.initial_gradient import ScalingLimits
from poptorch_emu.trace.recording.regions import HostFunction
from poptorch_emu.trace.values.value_guards import ValueGuards


@dataclass(frozen=True)
class PlacedGraph:
    """The lowered graph, its division into stages, and the memory of each IPU.

    Attributes:
        transfers: inputs and outputs that are transferred while the IPUs compute.
        tiles: memory plan of the tiles of the real machine.
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
        program: program for the engine.
        key: description of everything that the program was compiled from.
        look_up: returns the placed graph; one from a file is rebuilt on first use.
        outputs: structure that `forward` returned, with placeholders for tensors.
        num_outputs: number of tensors of `outputs` that the program returns, in order.
        host_outputs: outputs that were never on the device, by position among all tensors.
        written_inputs: inputs that the program changes; their values follow the outputs.
        host_functions: functions that the program calls on the host, by name.
        scalars: number of each hyper-parameter in the program, by (name, group).
        ipus_per_replica: number of IPUs of a replica, including idle ones in between.
        is_random: whether the program draws random numbers.
        anchors: short names of the tensors that the program returns last, in order.
        tensor_names: sorted names that `Options.anchorTensor` accepts.
        batch_counts: number that a micro-batch adds to each counted buffer of integers.
        guards: conditions on values of inputs under which the program is valid.
        scaling_limits: limits of the loss scaling; None in inference.
        shortages: sentences about IPUs of the real machine whose tiles are too small.
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
    scaling_limits: ScalingLimits | None = None
    shortages: tuple[str, ...] = ()

    @property
    def num_ipus(self) -> int:
        """Number of IPUs of all replicas; on the virtual system rounded up to a power of two."""
        used = self.ipus_per_replica * self.config.replication_factor
        is_rounded = self.config.target is TargetKind.HARDWARE
        return 1 << (used - 1).bit_length() if is_rounded else used

    @property
    def has_device_work(self) -> bool:
        """Whether the program does anything on the device; otherwise every output is a constant."""
        return bool(self.num_outputs or self.variables or self.written_inputs or self.anchors)

    @property
    def graph(self) -> Graph:
        """The graph that was lowered."""
        return self.placed.graph

    @property
    def partition(self) -> Partition:
        """Stage of each operation of the graph."""
        return self.placed.partition

    @property
    def memory(self) -> MemoryPlan:
        """Memory plan of the engine's IPUs."""
        return self.placed.memory

    @property
    def tiles(self) -> TileMemory:
        """Memory plan of the tiles of the real machine."""
        return self.placed.tiles

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Inputs and outputs that are transferred while the IPUs compute."""
        return self.placed.transfers

    @cached_property
    def placed(self) -> PlacedGraph:
        """The graph that was lowered, with its stages and memory."""
        return self.look_up()

    @property
    def num_windows(self) -> int:
        """Number of windows of the schedule in one call."""
        return self.config.device_iterations if self.config.is_training else 1

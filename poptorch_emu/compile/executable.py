"""What a compilation yields: the program with its plan and the names by which the host knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from poptorch_emu import _C
from poptorch_emu.config import CompileConfig, TargetKind
from poptorch_emu.ir.graph import Graph, SourceKind, source_of
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
class Executable:
    """A compiled model.

    Attributes:
        program: what the engine runs.
        outputs: what `forward` returned, with placeholders for tensors.
        num_outputs: tensors the program returns that belong to `outputs`, in order.
        host_outputs: outputs that never were on the device, by position among all tensors.
        written_inputs: inputs that the program changes; their values follow the outputs.
        scalars: number of each hyper-parameter in the program, by name and group.
        anchors: short names of the tensors that the program returns last, in order.
        tensor_names: what `Options.anchorTensor` can name, sorted.
    """

    program: _C.Program
    config: CompileConfig
    graph: Graph
    partition: Partition
    schedule: Schedule
    outputs: Any
    num_outputs: int
    host_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    written_inputs: tuple[int, ...] = ()
    variables: dict[str, VariableInfo] = field(default_factory=dict)
    scalars: dict[tuple[str, int], int] = field(default_factory=dict)
    segment_names: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()

    @property
    def num_ipus(self) -> int:
        """How many IPUs all replicas take; on the virtual system a power of two."""
        used = (max(self.partition.ipu_ids) + 1) * self.config.replication_factor
        is_rounded = self.config.target is TargetKind.HARDWARE
        return 1 << (used - 1).bit_length() if is_rounded else used

    @property
    def has_device_work(self) -> bool:
        """Whether anything happens on the device; otherwise every output is a constant."""
        return bool(self.graph.sinks)

    @property
    def is_random(self) -> bool:
        """Whether the program draws random numbers."""
        return any(source_of(node).kind is SourceKind.RNG for node in self.graph.sources)

    @property
    def num_windows(self) -> int:
        """How many windows of the schedule one call runs."""
        return self.config.device_iterations if self.config.is_training else 1

"""Scalars of a training: the table of their names, units and meanings, and their values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from poptorch_emu.compile.executable import Executable
from poptorch_emu.enums import OutputMode
from poptorch_emu.ir.graph import SinkKind, operation_of, record_of
from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.time.time_plan import TimePlan
from poptorch_emu.runtime.session import Session
from poptorch_emu.structure import flatten_tensors, items_of

aten = torch.ops.aten

_COPIES = (aten._to_copy.default, aten.clone.default)
_NUM_BYTES_OF_A_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Scalar:
    """A kind of scalar; `{}` in its tag stands for an output or an IPU.

    Attributes:
        tag: name of the curve in TensorBoard.
        unit: unit of its values.
        meaning: one sentence about the value.
        fidelity: fidelity word of the value.
    """

    tag: str
    unit: str
    meaning: str
    fidelity: str

    @property
    def description(self) -> str:
        """Text that TensorBoard shows beside the curve."""
        return f"{self.meaning} Unit: {self.unit}. Fidelity: {self.fidelity}."


_OF_AN_UPDATE = (
    "With OutputMode.All it is the mean over the micro-batches of an update, otherwise the mean of "
    "the values that a call returns, and with OutputMode.Sum their share of a micro-batch."
)
LOSS = Scalar("loss", "that of forward", f"The loss. {_OF_AN_UPDATE}", "exact")
OUTPUT = Scalar(
    "outputs/{}",
    "that of forward",
    f"Another number that forward returns for a micro-batch. {_OF_AN_UPDATE}",
    "exact",
)
ENGINE_RATE = Scalar(
    "throughput/engine",
    "rows/s",
    "Rows of a call divided by the time of the engine in it, on this computer.",
    "exact",
)
PROGRAM_RATE = Scalar(
    "throughput/program",
    "rows/s",
    "Rows of a call divided by the time since the end of the previous call, on this computer: with "
    "the loader and everything else that the program does.",
    "exact",
)
MACHINE_RATE = Scalar(
    "throughput/machine",
    "rows/s",
    "Rows per second on the virtual system, as in emulator.estimate.",
    "modelled",
)
PROCESS_BYTES = Scalar(
    "memory/process", "MiB", "Resident memory of this process, on this computer.", "exact"
)
ENGINE_BYTES = Scalar(
    "memory/engine",
    "MiB",
    "Weights, states of the optimiser and the most gradients that the engine held at once, in one "
    "replica.",
    "exact",
)
TILE_BYTES = Scalar(
    "memory/fullest_tile_of_ipu_{}",
    "KiB",
    "Bytes of the fullest tile of an IPU, as in emulator.tile_memory.",
    "modelled",
)
SCALARS = (
    LOSS,
    OUTPUT,
    ENGINE_RATE,
    PROGRAM_RATE,
    MACHINE_RATE,
    PROCESS_BYTES,
    ENGINE_BYTES,
    TILE_BYTES,
)

# Values of one moment, by the tag of the curve and its kind.
Values = dict[tuple[str, Scalar], float]


def outputs_of(executable: Executable) -> dict[int, tuple[str, Scalar]]:
    """Returns the curve of each output that is one number for a micro-batch, by its position."""
    names = list(_paths(executable.outputs, ""))
    if len(names) != len(flatten_tensors(executable.outputs)):  # A type with the user's parser.
        names = []
    found = {}
    results = (pair for pair in executable.graph.results if pair[0].kind is SinkKind.OUTPUT)
    for position, (sink, node) in enumerate(results):
        value = node.meta["val"]
        if value.dim() == 0 and not value.is_complex():
            name = names[int(sink.name)] if names else sink.name
            other = OUTPUT.tag.format(name), OUTPUT
            found[position] = (LOSS.tag, LOSS) if _is_loss(node) else other
    return found


def _paths(structure: Any, path: str) -> Iterator[str]:
    """Yields the keys that lead to each tensor of a structure, joined by slashes."""
    if isinstance(structure, torch.Tensor):
        yield path or "0"
    else:
        for key, item in (items_of(structure) or {}).items():
            yield from _paths(item, f"{path}/{key}" if path else str(key))


def _is_loss(node: fx.Node) -> bool:
    """Returns whether a value is the loss that is differentiated, or a copy or view of it."""
    while node.op == "call_function":
        if record_of(operation_of(node)).is_loss:
            return True
        if not (traits_of(node.target).is_view or node.target in _COPIES):
            return False
        node = node.all_input_nodes[0]
    return False


def means(values: torch.Tensor, executable: Executable) -> list[float]:
    """Returns the mean over micro-batches and replicas of each update, or of the whole call.

    Args:
        values: numbers of micro-batches that one output of a call returns.
        executable: program of the call.
    """
    config = executable.config
    found = values.detach().reshape(-1).to(torch.float64)
    if config.output_mode is OutputMode.Sum:
        found = found / (config.device_iterations * config.gradient_accumulation)
    num_updates = executable.num_windows if config.output_mode is OutputMode.All else 1
    return found.reshape(num_updates, -1).mean(1).tolist()


def modelled(plan: TimePlan, executable: Executable) -> Values:
    """Returns the scalars of the machine, which are the same for all calls of a program."""
    tiles = executable.tiles
    values: Values = {
        (TILE_BYTES.tag.format(memory.ipu), TILE_BYTES): tiles.largest_bytes(memory) / KIB
        for memory in tiles.ipus
    }
    if plan.throughput is not None:
        values[MACHINE_RATE.tag, MACHINE_RATE] = plan.throughput
    return values


def measured(session: Session, num_rows: int, seconds: float | None) -> Values:
    """Returns the scalars of this computer after a call.

    Args:
        session: session that ran the call.
        num_rows: number of rows of the call.
        seconds: time since the end of the previous call; `None` for the first call.
    """
    held = session.replica_bytes(0) + session.peak_accumulator_bytes(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    values: Values = {
        (ENGINE_BYTES.tag, ENGINE_BYTES): held / KIB**2,
        (PROCESS_BYTES.tag, PROCESS_BYTES): pages * _NUM_BYTES_OF_A_PAGE / KIB**2,
    }
    for kind, duration in ((ENGINE_RATE, session.call_seconds), (PROGRAM_RATE, seconds)):
        if duration:
            values[kind.tag, kind] = num_rows / duration
    return values


def of_outputs(
    outputs: dict[int, tuple[str, Scalar]],
    results: Sequence[torch.Tensor],
    executable: Executable,
) -> list[Values]:
    """Returns the scalars that `forward` computed, for each update of a call.

    Args:
        outputs: result of `outputs_of`.
        results: results of the call.
        executable: program of the call.
    """
    updates: list[Values] = [{} for _ in range(executable.num_windows)]
    for position, curve in outputs.items():
        found = means(results[position], executable)
        for values, value in zip(updates[-len(found) :], found, strict=True):
            values[curve] = value
    return updates

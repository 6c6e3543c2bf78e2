"""The user's settings for memory, except the places of tensors, as lines of text.

The model of the machine reads these settings; virtual IPUs take the memory that they need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from poptorch_emu.config import CompileConfig, MachineConfig
from poptorch_emu.ir.graph import Graph, record_of
from poptorch_emu.schedule.partition import Partition


def memory_settings(graph: Graph, placed: Partition, config: CompileConfig) -> Iterator[str]:
    """Yields a line for each setting that is not the default."""
    machine, default = config.machine, MachineConfig()
    if machine.num_io_tiles:
        yield f"{machine.num_io_tiles} tiles of each IPU are reserved for I/O"
    for ipu, proportion in machine.available_memory_proportion:
        yield f"IPU {ipu}: products and convolutions may take {proportion} of its memory"
    for (ipu, proportion), count in sorted(_of_operations(graph, placed).items()):
        noun = "operation" if count == 1 else "operations"
        yield f"IPU {ipu}: {count} {noun} may take {proportion} of its memory each"
    outlined = (machine.is_outlined, machine.outline_threshold)
    if outlined != (default.is_outlined, default.outline_threshold):
        yield (
            "equal parts of the code are stored once where that saves "
            f"{machine.outline_threshold} or more"
            if machine.is_outlined
            else "equal parts of the code are not merged"
        )


def _of_operations(graph: Graph, placed: Partition) -> Counter[tuple[int, float]]:
    """Returns the number of operations with a proportion of their own, by (user's IPU, proportion).

    Source: `poptorch.set_available_memory`.
    """
    found = Counter[tuple[int, float]]()
    for node in graph.operations:
        proportion = record_of(node).available_memory_proportion
        if proportion is not None:
            _, stage = placed.port_of[node]
            found[placed.ipu_ids[placed.ipu_of_stage[stage]], proportion] += 1
    return found

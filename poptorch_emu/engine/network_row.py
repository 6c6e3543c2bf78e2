"""Network actions in each micro-batch: collectives, and gradients of sharded accumulators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import fx

from poptorch_emu.config import CompileConfig
from poptorch_emu.ir.exchange import is_collective
from poptorch_emu.log import logger
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.schedule import Port, Schedule
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.segmented_graph import segment_name


@dataclass
class ShardedSums:
    """The gradients of one segment that the network adds to sharded sums.

    Attributes:
        code: segment without loads and instructions; a link writes its `registers`.
        weights: names of the weights, in the order of their exchange in every process.
        nodes: gradients of the weights, in the same order.
        registers: registers in `code` that receive the gradients, in the same order.
    """

    code: Segment
    weights: list[str] = field(default_factory=list)
    nodes: list[fx.Node] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)

    def add(self, weight: str, node: fx.Node) -> None:
        """Adds the gradient of a weight and a register for it."""
        self.weights.append(weight)
        self.nodes.append(node)
        self.registers.append(self.code.new_register())


class NetworkRow:
    """All exchanges between processes in each micro-batch, in one list that every process follows.

    Attributes:
        sums: gradients that are added to sharded sums, by port.
        collectives: names of the collectives of a segment, in order, by port.
        indices: numbers of the program's segments for these exchanges, in order, by port.
    """

    def __init__(self, config: CompileConfig) -> None:
        self._is_distributed = config.is_distributed
        self.sums: dict[Port, ShardedSums] = {}
        self.collectives: dict[Port, list[str]] = {}
        self.indices: defaultdict[Port, list[int]] = defaultdict(list)

    def add_collectives(self, port: Port, code: Segment) -> None:
        """Stores the collectives of the segment at `port`, if there are other processes."""
        names = [each.name for each in code.instructions if is_collective(each.node)]
        if names and self._is_distributed:
            self.collectives[port] = names

    def relays(self) -> Iterator[tuple[Port, int, Segment]]:
        """Yields an empty segment with a name for each collective, with its port and its number."""
        for port, names in self.collectives.items():
            for number, name in enumerate(names):
                yield port, number, Segment(f"{name} of {segment_name(port)}")

    def add(self, weight: str, port: Port, node: fx.Node) -> None:
        """Adds the gradient of a weight that the segment at `port` computes."""
        if port not in self.sums:
            self.sums[port] = ShardedSums(Segment(f"exchange of {segment_name(port)}"))
        self.sums[port].add(weight, node)

    def entries(self, schedule: Schedule) -> list[tuple[int, int]]:
        """Returns pairs of segment and micro-batch in the order of the schedule's slots.

        Each value is exchanged in the slot that computes it, so that nobody waits for later slots.
        """
        return [
            (index, turn)
            for cells in zip(*schedule.rows, strict=True)
            for cell in cells
            for action in cell
            for port, turn in schedule.turns(action)
            for index in self.indices[port]
        ]

    def warn_of_price(self, inventory: Inventory) -> None:
        """Warns how much more data sharded accumulators exchange than whole accumulators would."""
        names = [name for sums in self.sums.values() for name in sums.weights]
        config = inventory.config
        if not names or config.gradient_accumulation == 1:
            return
        elements = sum(inventory.variables[name].num_elements for name in names)
        megabytes = elements * inventory.accumulator_type.itemsize / 1e6
        logger.warning(
            "The accumulators of %d weights are sharded over %d processes, so %.3g MB are "
            "exchanged in each of the %d micro-batches of an update. Whole accumulators "
            "(setAccumulatorLocation without useReplicatedTensorSharding) are exchanged once.",
            len(names),
            config.num_processes,
            megabytes,
            config.gradient_accumulation,
        )

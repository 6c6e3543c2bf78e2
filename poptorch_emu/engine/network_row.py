"""Where each process has parts of gradients' sums, what the network does in each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from poptorch_emu.log import logger
from poptorch_emu.plan.inventory import Inventory
from poptorch_emu.schedule.schedule import Port, Schedule
from poptorch_emu.segments.segment import Segment
from poptorch_emu.segments.segmented_graph import segment_name


@dataclass
class ShardedSums:
    """The gradients of one segment that the network adds to sums which are cut.

    Attributes:
        code: loads nothing and computes nothing; `registers` arrive by a link.
        weights: whose gradients, in the order in which every process exchanges them.
        nodes: their gradients, in that order.
        registers: where they arrive.
    """

    code: Segment
    weights: list[str] = field(default_factory=list)
    nodes: list[fx.Node] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)

    def add(self, weight: str, node: fx.Node) -> None:
        """Takes the gradient of a weight."""
        self.weights.append(weight)
        self.nodes.append(node)
        self.registers.append(self.code.new_register())


class NetworkRow:
    """What is added up over the processes micro-batch by micro-batch, one list for all of them."""

    def __init__(self) -> None:
        self.by_port: dict[Port, ShardedSums] = {}

    def add(self, weight: str, port: Port, node: fx.Node) -> None:
        """Takes a gradient that the segment at `port` computes."""
        if port not in self.by_port:
            self.by_port[port] = ShardedSums(Segment(f"exchange of {segment_name(port)}"))
        self.by_port[port].add(weight, node)

    def entries(self, schedule: Schedule) -> list[tuple[Port, int]]:
        """Returns ports and micro-batches in the order of the schedule's slots.

        Each is exchanged in the slot that computes it, so that nobody waits for a later one.
        """
        return [
            (port, turn)
            for cells in zip(*schedule.rows, strict=True)
            for cell in cells
            for action in cell
            for port, turn in schedule.turns(action)
            if port in self.by_port
        ]

    def warn_of_price(self, inventory: Inventory) -> None:
        """Says how much more is exchanged than if accumulators were whole."""
        names = [name for sums in self.by_port.values() for name in sums.weights]
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

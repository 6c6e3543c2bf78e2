"""What the network does in each micro-batch: collectives, and sums of gradients that are cut."""

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
    """What processes exchange micro-batch by micro-batch, one list for all of them.

    Attributes:
        sums: by port, the gradients that are added to sums which are cut.
        collectives: by port, the name of each collective, in order.
        indices: by port, the segments of the program that do all this, in order.
    """

    def __init__(self, config: CompileConfig) -> None:
        self._is_distributed = config.is_distributed
        self.sums: dict[Port, ShardedSums] = {}
        self.collectives: dict[Port, list[str]] = {}
        self.indices: defaultdict[Port, list[int]] = defaultdict(list)

    def add_collectives(self, port: Port, code: Segment) -> None:
        """Takes the collectives of the segment at `port`, where there are other processes."""
        names = [each.name for each in code.instructions if is_collective(each.node)]
        if names and self._is_distributed:
            self.collectives[port] = names

    def relays(self) -> Iterator[tuple[Port, int, Segment]]:
        """Yields the code that carries out each collective: empty, but for its name."""
        for port, names in self.collectives.items():
            for number, name in enumerate(names):
                yield port, number, Segment(f"{name} of {segment_name(port)}")

    def add(self, weight: str, port: Port, node: fx.Node) -> None:
        """Takes a gradient that the segment at `port` computes."""
        if port not in self.sums:
            self.sums[port] = ShardedSums(Segment(f"exchange of {segment_name(port)}"))
        self.sums[port].add(weight, node)

    def entries(self, schedule: Schedule) -> list[tuple[int, int]]:
        """Returns segments and micro-batches in the order of the schedule's slots.

        Each is exchanged in the slot that computes it, so that nobody waits for a later one.
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
        """Says how much more is exchanged than if accumulators were whole."""
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

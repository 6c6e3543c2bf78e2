"""What replicas that meet within a micro-batch take: exchanges over the links of their IPUs.

All are counted as rings, as the adding up of gradients is (`links.py`); where an exchange waits for
a late replica is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from poptorch_emu.machine.costs import movement
from poptorch_emu.machine.costs.cost import Cost, Evidence
from poptorch_emu.machine.costs.elementwise import elementwise
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.links import all_reduce_seconds, gather_seconds


@dataclass(frozen=True)
class Replicas:
    """Who exchanges.

    Attributes:
        count: how many replicas.
        num_ipus: of each, which share the links.
    """

    count: int
    num_ipus: int


def all_gather(num_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of a gather; `num_bytes` are those that each replica has afterwards."""
    seconds = gather_seconds(num_bytes, replicas.count, replicas.num_ipus, tiles.numbers)
    return _over_links(seconds, tiles) + movement.copy(num_bytes, tiles)


def all_reduce(num_elements: int, item_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of a sum, whose additions the replicas share."""
    num_bytes = num_elements * item_bytes
    seconds = all_reduce_seconds(num_bytes, replicas.count, replicas.num_ipus, tiles.numbers)
    added = num_elements * (replicas.count - 1) // replicas.count
    return _over_links(seconds, tiles) + elementwise("add", added, item_bytes, tiles)


def all_to_all(num_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of swapping pieces; `num_bytes` are those that each replica has.

    A piece that goes d steps around the ring takes d of its links: over all, as much as a gather
    of half of what all replicas have (derived).
    """
    volume = num_bytes * replicas.count // 2
    seconds = gather_seconds(volume, replicas.count, replicas.num_ipus, tiles.numbers)
    return _over_links(seconds, tiles) + movement.copy(num_bytes, tiles)


def _over_links(seconds: float, tiles: Tiles) -> Cost:
    cycles = seconds * tiles.chip.clock_hz
    return Cost(0.0, cycles, tiles.numbers.link_sync_cycles, 1, Evidence.ASSUMED)

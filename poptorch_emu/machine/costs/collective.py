"""Costs of exchanges between replicas within a micro-batch, over the links of their IPUs.

Every exchange is counted as a ring, like the reduction of gradients (`links.py`). The time that an
exchange waits for a late replica is not modelled.
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
    """The replicas that take part in an exchange.

    Attributes:
        count: number of replicas.
        num_ipus: IPUs of each replica, which share the links.
    """

    count: int
    num_ipus: int


def all_gather(num_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of an all-gather that leaves `num_bytes` on each replica."""
    seconds = gather_seconds(num_bytes, replicas.count, replicas.num_ipus, tiles.numbers)
    return _over_links(seconds, tiles) + movement.copy(num_bytes, tiles)


def all_reduce(num_elements: int, item_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of an all-reduce; each replica computes an equal part of the additions."""
    num_bytes = num_elements * item_bytes
    seconds = all_reduce_seconds(num_bytes, replicas.count, replicas.num_ipus, tiles.numbers)
    added = num_elements * (replicas.count - 1) // replicas.count
    return _over_links(seconds, tiles) + elementwise("add", added, item_bytes, tiles)


def all_to_all(num_bytes: int, replicas: Replicas, tiles: Tiles) -> Cost:
    """Returns the cost of an all-to-all over `num_bytes` on each replica.

    A piece that travels d steps around the ring uses d links. The sum over all pieces is the
    traffic of an all-gather of half of the bytes that all replicas hold (derived).
    """
    volume = num_bytes * replicas.count // 2
    seconds = gather_seconds(volume, replicas.count, replicas.num_ipus, tiles.numbers)
    return _over_links(seconds, tiles) + movement.copy(num_bytes, tiles)


def _over_links(seconds: float, tiles: Tiles) -> Cost:
    cycles = seconds * tiles.chip.clock_hz
    return Cost(0.0, cycles, tiles.numbers.link_sync_cycles, 1, Evidence.ASSUMED)

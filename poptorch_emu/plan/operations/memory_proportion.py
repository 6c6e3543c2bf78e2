"""How much of a tile's memory a product may take: the available memory proportion."""

from __future__ import annotations

from torch import fx

from poptorch_emu.ir.graph import record_of
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.plan.inventory import Inventory


def memory_proportion(inventory: Inventory, node: fx.Node, ipu: int | None) -> float:
    """Returns the part of a tile's memory that the products of an operation may take.

    Args:
        inventory: with what the user has set for each IPU.
        node: whose own proportion, if it has one, wins.
        ipu: the virtual IPU that runs it; with `None`, for a body of which several may run, the
            least of all counts.
    """
    own = record_of(node).available_memory_proportion
    if own is not None:
        return own
    of_ipu = dict(inventory.config.machine.available_memory_proportion)
    if ipu is None:
        return min(of_ipu.values(), default=DEFAULT_PROPORTION)
    return of_ipu.get(inventory.placed.ipu_ids[ipu], DEFAULT_PROPORTION)

"""The available memory proportion: the fraction of a tile's memory that a product may use."""

from __future__ import annotations

from torch import fx

from poptorch_emu.ir.graph import record_of
from poptorch_emu.machine.costs.product import DEFAULT_PROPORTION
from poptorch_emu.plan.inventory import Inventory


def memory_proportion(inventory: Inventory, node: fx.Node, ipu: int | None) -> float:
    """Returns the fraction of a tile's memory that the products of an operation may use.

    Args:
        inventory: the placed model, with the proportion that the user has set for each IPU.
        node: the operation. A proportion that the user has set for it overrides that of its IPU.
        ipu: index of the virtual IPU that runs the operation. None, for a body that may run on
            several IPUs, selects the smallest proportion.
    """
    own = record_of(node).available_memory_proportion
    if own is not None:
        return own
    of_ipu = dict(inventory.config.machine.available_memory_proportion)
    if ipu is None:
        return min(of_ipu.values(), default=DEFAULT_PROPORTION)
    return of_ipu.get(inventory.placed.ipu_ids[ipu], DEFAULT_PROPORTION)

"""What lives in streaming memory, by the user's tensor locations and the liveness of phases."""

from __future__ import annotations

from torch import fx

from poptorch_emu.compile.segments import Crossing
from poptorch_emu.config import CompileConfig, TensorLocation
from poptorch_emu.enums import Liveness
from poptorch_emu.schedule.actions import Kind


def location_of(config: CompileConfig, is_state: bool) -> TensorLocation:
    """Returns where a variable lives: a state of the optimiser, or one of the model."""
    return config.locations.optimizer if is_state else config.locations.weight


def is_stash(crossing: Crossing) -> bool:
    """Returns whether the values wait from a forward for a backward."""
    return (crossing.producer[0], crossing.consumer[0]) == (Kind.FORWARD, Kind.BACKWARD)


def parts_of(config: CompileConfig, crossing: Crossing) -> list[tuple[list[fx.Node], bool]]:
    """Returns the values that cross on chip, and those that wait in streaming memory.

    Returns:
        One or two pairs of the values and whether they are remote.
    """
    remote = [node for node in crossing.nodes if _is_remote(config, crossing, node)]
    local = [node for node in crossing.nodes if node not in remote]
    return [part for part in ((local, False), (remote, True)) if part[0]]


def _is_remote(config: CompileConfig, crossing: Crossing, node: fx.Node) -> bool:
    if not is_stash(crossing):
        return False
    leaves_with_phase = config.strategy.liveness is not Liveness.AlwaysLive
    return leaves_with_phase or config.locations.activation.is_remote(node.meta["val"].numel())

"""What lives in streaming memory, by the user's tensor locations and the liveness of phases.

A liveness other than `AlwaysLive` sends the weights and activations of phases away wherever the
user did not ask for a place: weights live in streaming memory and come for each phase that uses
them; so do activations that wait for backward. `OffChipAfterEachPhase` also sends what goes from
one phase to the next.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from poptorch_emu.compile.segments import Crossing
from poptorch_emu.config import CompileConfig, TensorLocation
from poptorch_emu.enums import Liveness
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition


def location_of(config: CompileConfig, is_state: bool) -> TensorLocation:
    """Returns where a variable lives: a state of the optimiser, or one of the model."""
    return config.locations.optimizer if is_state else _of_phases(config, config.locations.weight)


def is_stash(crossing: Crossing) -> bool:
    """Returns whether the values wait from a forward for a backward."""
    return (crossing.producer[0], crossing.consumer[0]) == (Kind.FORWARD, Kind.BACKWARD)


def parts_of(
    config: CompileConfig, placed: Partition, crossing: Crossing
) -> list[tuple[list[fx.Node], bool]]:
    """Returns the values that cross on chip, and those that wait in streaming memory.

    Returns:
        One or two pairs of the values and whether they are remote.
    """
    location = _of_phases(config, config.locations.activation)
    leaves = is_stash(crossing) or _changes_phase(config, placed, crossing)
    remote = [
        node for node in crossing.nodes if leaves and location.is_remote(node.meta["val"].numel())
    ]
    local = [node for node in crossing.nodes if node not in remote]
    return [part for part in ((local, False), (remote, True)) if part[0]]


def _of_phases(config: CompileConfig, asked: TensorLocation) -> TensorLocation:
    """Returns the place that was asked for, or else that of the tensors of phases, of any size."""
    if asked.is_on_chip is None and config.strategy.liveness is not Liveness.AlwaysLive:
        return replace(asked, is_on_chip=False, min_elements_off_chip=0)
    return asked


def _changes_phase(config: CompileConfig, placed: Partition, crossing: Crossing) -> bool:
    """Returns whether the values go to another phase, and those of each phase leave the chip."""
    producer, consumer = (
        placed.places[stage].phase for _, stage in (crossing.producer, crossing.consumer)
    )
    leaves = config.strategy.liveness is Liveness.OffChipAfterEachPhase
    return leaves and producer != consumer

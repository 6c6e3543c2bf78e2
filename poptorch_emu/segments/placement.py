"""Placement of tensors on the chip or in streaming memory.

The user's tensor locations decide, then the liveness of phases. A liveness other than `AlwaysLive`
moves weights, and activations that wait for backward, to streaming memory unless the user chose a
location. Each phase then loads the weights that it uses. `OffChipAfterEachPhase` also moves the
values that go from one phase to the next.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from poptorch_emu.config import CompileConfig, TensorLocation
from poptorch_emu.enums import Liveness
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.schedule import Port


def location_of(config: CompileConfig, is_state: bool) -> TensorLocation:
    """Returns the location of a variable.

    Args:
        config: configuration with the locations.
        is_state: whether the variable is a state of the optimiser; otherwise it is the model's.
    """
    return config.locations.optimizer if is_state else _of_phases(config, config.locations.weight)


def is_stash(producer: Port, consumer: Port) -> bool:
    """Returns whether values from `producer` to `consumer` are stashed for backward.

    Values that one part of backward hands to a later part of its own stage count as stashed, too.
    """
    is_handed_on = producer[1] == consumer[1] and producer[0] < consumer[0]
    return consumer[0] is not Kind.FORWARD and (producer[0] is Kind.FORWARD or is_handed_on)


def leaves_chip(
    config: CompileConfig, placed: Partition, producer: Port, consumer: Port, value: fx.Node
) -> bool:
    """Returns whether `value` waits in streaming memory between two segments."""
    location = _of_phases(config, config.locations.activation)
    if not location.is_remote(value.meta["val"].numel()):
        return False
    return is_stash(producer, consumer) or _changes_phase(config, placed, producer, consumer)


def _of_phases(config: CompileConfig, asked: TensorLocation) -> TensorLocation:
    """Returns the user's location, or streaming memory if there is none and phases offload."""
    if asked.is_on_chip is None and config.strategy.liveness is not Liveness.AlwaysLive:
        return replace(asked, is_on_chip=False, min_elements_off_chip=0)
    return asked


def _changes_phase(
    config: CompileConfig, placed: Partition, producer: Port, consumer: Port
) -> bool:
    """Returns whether values go to another phase, and the liveness offloads such values."""
    leaves = config.strategy.liveness is Liveness.OffChipAfterEachPhase
    return leaves and placed.places[producer[1]].phase != placed.places[consumer[1]].phase

"""What lives in streaming memory, by the user's tensor locations and the liveness of phases.

A liveness other than `AlwaysLive` sends the weights and activations of phases away wherever the
user did not ask for a place: weights live in streaming memory and come for each phase that uses
them; so do activations that wait for backward. `OffChipAfterEachPhase` also sends what goes from
one phase to the next.
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
    """Returns where a variable lives: a state of the optimiser, or one of the model."""
    return config.locations.optimizer if is_state else _of_phases(config, config.locations.weight)


def is_stash(producer: Port, consumer: Port) -> bool:
    """Returns whether what goes from one segment to another waits from forward for backward.

    So does what a part of backward hands on to a later part of its own stage.
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
    """Returns the place that was asked for, or else that of the tensors of phases, of any size."""
    if asked.is_on_chip is None and config.strategy.liveness is not Liveness.AlwaysLive:
        return replace(asked, is_on_chip=False, min_elements_off_chip=0)
    return asked


def _changes_phase(
    config: CompileConfig, placed: Partition, producer: Port, consumer: Port
) -> bool:
    """Returns whether values go to another phase, and those of each phase leave the chip."""
    leaves = config.strategy.liveness is Liveness.OffChipAfterEachPhase
    return leaves and placed.places[producer[1]].phase != placed.places[consumer[1]].phase

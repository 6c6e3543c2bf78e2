"""Checks and numbers of the phases of phased execution.

Phases change no value. They decide where tensors wait (`placement.py`) and how many bytes the chip
holds at once (`plan/memory/ipu_workspace.py`).
"""

from __future__ import annotations

from poptorch_emu.config import CompileConfig, StrategyConfig, StrategyKind
from poptorch_emu.enums import Liveness
from poptorch_emu.errors import compiler_error
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.schedule.phase_numbers import PhaseNumbers, number_phases
from poptorch_emu.schedule.schedule import Port

# Distance between the numbers of two phases. Source: user guide of PopTorch, phased execution.
_SPACING = {
    Liveness.AlwaysLive: 1,
    Liveness.OffChipAfterFwd: 1,
    Liveness.OffChipAfterFwdNoOverlap: 2,
    Liveness.OffChipAfterEachPhase: 4,
}

# Empty phases between forward and backward, so that tensors can leave and return. Source: as above.
_EMPTY_PHASES = 3


def check_phases(placed: Partition, config: CompileConfig) -> None:
    """Checks the rules of phased execution; other strategies have none.

    Raises:
        Error: a liveness needs serial phases, or a parallel phase is on an IPU of the other parity.
    """
    strategy = config.strategy
    if strategy.kind is not StrategyKind.PARALLEL_PHASED:
        return
    if _SPACING[strategy.liveness] > 1:
        raise compiler_error(
            f"Liveness {strategy.liveness.name}: This is only supported for serial phase execution."
            " Use poptorch.SerialPhasedExecution, or keep the default liveness."
        )
    for place in placed.places:
        if place.phase % 2 != place.ipu % 2:
            raise compiler_error(
                "When phases are executed in parallel, even phases must run on even IPUs and odd "
                f"phases on odd IPUs, but phase {place.phase} (block '{place.block_id}') runs on "
                f"IPU {place.ipu}. Set its IPUs with poptorch.Phase.ipus(), or use "
                "poptorch.SerialPhasedExecution."
            )


def phase_numbers(strategy: StrategyConfig, is_training: bool) -> PhaseNumbers:
    """Returns the number of each phase of a phased strategy."""
    num_phases = 1 + max(stage.phase for stage in strategy.stages)
    gap = int(strategy.has_separate_backward_phase)
    if strategy.liveness is not Liveness.AlwaysLive:
        gap += _EMPTY_PHASES
    return number_phases(num_phases, _SPACING[strategy.liveness], gap, is_training)


def port_numbers(placed: Partition, config: CompileConfig) -> dict[Port, int]:
    """Returns the number of the phase of each segment; empty unless execution is phased."""
    if not config.strategy.is_phased:
        return {}
    numbers = phase_numbers(config.strategy, config.is_training)
    result = {
        (Kind.FORWARD, stage): numbers.forward[place.phase]
        for stage, place in enumerate(placed.places)
    }
    if config.is_training:
        for stage, place in enumerate(placed.places):
            result[Kind.BACKWARD, stage] = numbers.backward[place.phase]
    return result


def overlaps_phases(config: CompileConfig) -> bool:
    """Returns whether the tensors of a phase are moved while the phase before it computes.

    Parallel phases move them on the other group of IPUs. Serial phases need tiles for I/O that load
    tensors from streaming memory. Assumed: the computing tiles cannot do both at once.
    """
    if config.strategy.kind is StrategyKind.PARALLEL_PHASED:
        return True
    locations = config.locations
    loaded = (locations.weight, locations.activation)
    return (
        config.strategy.kind is StrategyKind.SERIAL_PHASED
        and config.machine.num_io_tiles > 0
        and any(location.uses_io_tiles_to_load for location in loaded)
    )

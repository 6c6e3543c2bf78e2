"""The rules and the numbers of phased execution, taken from PopTorch's user guide."""

from __future__ import annotations

import pytest

from poptorch_emu.config import CompileConfig, StageConfig, StrategyConfig, StrategyKind
from poptorch_emu.enums import Liveness
from poptorch_emu.errors import Error
from poptorch_emu.ir.record import BlockPlace
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.segments.phases import check_phases, phase_numbers, port_numbers

F, B = Kind.FORWARD, Kind.BACKWARD
SERIAL, PARALLEL = StrategyKind.SERIAL_PHASED, StrategyKind.PARALLEL_PHASED


def strategy(
    liveness: Liveness = Liveness.AlwaysLive, *, separate: bool = False, kind=SERIAL, phases=3
) -> StrategyConfig:
    stages = tuple(StageConfig((f"b{phase}",), phase=phase) for phase in range(phases))
    return StrategyConfig(
        kind, stages, None, liveness=liveness, has_separate_backward_phase=separate
    )


def on(*ipu_and_phase: tuple[int, int]) -> Partition:
    places = tuple(
        BlockPlace(f"b{stage}", stage, ipu, phase)
        for stage, (ipu, phase) in enumerate(ipu_and_phase)
    )
    ipus = tuple(sorted({ipu for ipu, _ in ipu_and_phase}))
    return Partition(ipus, tuple(ipus.index(ipu) for ipu, _ in ipu_and_phase), places, {})


@pytest.mark.parametrize(
    ("liveness", "separate", "forward", "backward"),
    [
        (Liveness.AlwaysLive, False, (0, 1, 2), (4, 3, 2)),
        (Liveness.AlwaysLive, True, (0, 1, 2), (5, 4, 3)),
        (Liveness.OffChipAfterFwd, False, (0, 1, 2), (7, 6, 5)),
        (Liveness.OffChipAfterFwd, True, (0, 1, 2), (8, 7, 6)),
        (Liveness.OffChipAfterFwdNoOverlap, False, (0, 2, 4), (11, 9, 7)),
        (Liveness.OffChipAfterEachPhase, False, (0, 4, 8), (19, 15, 11)),
    ],
)
def test_phases_then_are_numbered_up_and_down(liveness, separate, forward, backward) -> None:
    numbers = phase_numbers(strategy(liveness, separate=separate), is_training=True)
    assert (numbers.forward, numbers.backward) == (forward, backward)
    inference = phase_numbers(strategy(liveness, separate=separate), is_training=False)
    assert (inference.forward, inference.backward) == (forward, ())


def test_segments_then_have_the_numbers_of_their_phases() -> None:
    places = on((0, 0), (1, 0), (0, 1))
    config = CompileConfig(True, strategy=strategy(phases=2))
    assert port_numbers(places, config) == {
        (F, 0): 0, (F, 1): 0, (F, 2): 1, (B, 2): 1, (B, 1): 2, (B, 0): 2,
    }  # fmt: skip
    inference = CompileConfig(False, strategy=strategy(phases=2))
    assert port_numbers(places, inference) == {(F, 0): 0, (F, 1): 0, (F, 2): 1}
    assert port_numbers(places, CompileConfig(True)) == {}


@pytest.mark.parametrize("liveness", Liveness, ids=lambda liveness: liveness.name)
def test_liveness_that_needs_serial_phases_then_is_refused_in_parallel(liveness) -> None:
    places = on((0, 0), (1, 1))
    check_phases(places, CompileConfig(True, strategy=strategy(liveness)))
    parallel = CompileConfig(True, strategy=strategy(liveness, kind=PARALLEL))
    if liveness in (Liveness.AlwaysLive, Liveness.OffChipAfterFwd):
        check_phases(places, parallel)
        return
    with pytest.raises(Error, match=f"Liveness {liveness.name}.*only supported for serial phase"):
        check_phases(places, parallel)


@pytest.mark.parametrize(("ipu", "is_allowed"), [(0, False), (1, True), (2, False), (3, True)])
def test_parallel_phase_then_runs_on_ipus_of_its_parity(ipu, is_allowed) -> None:
    places = on((0, 0), (ipu, 1))
    check_phases(places, CompileConfig(True, strategy=strategy()))
    config = CompileConfig(True, strategy=strategy(kind=PARALLEL))
    if is_allowed:
        check_phases(places, config)
        return
    with pytest.raises(Error, match=rf"phase 1 \(block 'b1'\) runs on IPU {ipu}"):
        check_phases(places, config)

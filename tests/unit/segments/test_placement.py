"""Choice of tensors for streaming memory, by the user or by the liveness of phases."""

from __future__ import annotations

import pytest
from support.layered_graphs import ROWS, WIDTH, layers, placed

from poptorch_emu.config import (
    CompileConfig,
    LocationConfig,
    StrategyConfig,
    StrategyKind,
    TensorLocation,
)
from poptorch_emu.enums import Liveness
from poptorch_emu.ir.record import BlockPlace
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition
from poptorch_emu.segments.placement import is_stash, leaves_chip, location_of

F, B = Kind.FORWARD, Kind.BACKWARD
ON, OFF = TensorLocation(is_on_chip=True), TensorLocation(is_on_chip=False)
VALUE = layers([0]).operations[1]


def phased(liveness: Liveness, **locations: TensorLocation) -> CompileConfig:
    strategy = StrategyConfig(kind=StrategyKind.SERIAL_PHASED, liveness=liveness)
    return CompileConfig(True, strategy=strategy, locations=LocationConfig(**locations))


def two_phases() -> Partition:
    places = tuple(BlockPlace(f"b{phase}", phase, 0, phase) for phase in (0, 1))
    return Partition((0,), (0, 0), places, {})


def test_stash_then_is_what_forward_keeps_for_backward() -> None:
    assert is_stash((F, 0), (B, 0)) and is_stash((F, 0), (B, 2))
    assert not is_stash((F, 0), (F, 1)) and not is_stash((B, 1), (B, 0))


# (liveness, location by the user, whether a stash is off chip, whether a value for the next phase
# is off chip)
LEAVING = [
    (Liveness.AlwaysLive, TensorLocation(), False, False),
    (Liveness.AlwaysLive, OFF, True, False),
    (Liveness.AlwaysLive, ON, False, False),
    (Liveness.OffChipAfterFwd, TensorLocation(), True, False),
    (Liveness.OffChipAfterFwd, ON, False, False),
    (Liveness.OffChipAfterFwdNoOverlap, TensorLocation(), True, False),
    (Liveness.OffChipAfterEachPhase, TensorLocation(), True, True),
    (Liveness.OffChipAfterEachPhase, ON, False, False),
    (Liveness.OffChipAfterEachPhase, OFF, True, True),
]


@pytest.mark.parametrize(("liveness", "asked", "stash", "passed_on"), LEAVING)
def test_activation_then_leaves_the_chip_as_asked_or_as_the_liveness_says(
    liveness, asked, stash, passed_on
) -> None:
    config, places = phased(liveness, activation=asked), two_phases()
    assert leaves_chip(config, places, (F, 0), (B, 0), VALUE) is stash
    assert leaves_chip(config, places, (F, 0), (F, 1), VALUE) is passed_on
    assert leaves_chip(config, places, (B, 1), (B, 0), VALUE) is passed_on


def test_activation_within_a_phase_then_stays() -> None:
    places = tuple(BlockPlace(f"b{ipu}", ipu, ipu, 0) for ipu in (0, 1))
    one_phase = Partition((0, 1), (0, 1), places, {})
    config = phased(Liveness.OffChipAfterEachPhase)
    assert not leaves_chip(config, one_phase, (F, 0), (F, 1), VALUE)


@pytest.mark.parametrize(
    ("min_elements", "leaves"), [(ROWS * WIDTH, True), (ROWS * WIDTH + 1, False)]
)
def test_activation_when_small_then_stays(min_elements, leaves) -> None:
    graph = layers([0])
    value = next(node for node in graph.operations if node.meta["val"].numel() == ROWS * WIDTH)
    location = TensorLocation(is_on_chip=False, min_elements_off_chip=min_elements)
    config = CompileConfig(True, locations=LocationConfig(activation=location))
    assert leaves_chip(config, placed(graph), (F, 0), (B, 0), value) is leaves


def test_weights_then_follow_the_phases_and_states_the_user() -> None:
    config = phased(Liveness.OffChipAfterFwd, optimizer=ON)
    assert location_of(config, is_state=False).is_remote(1)
    assert location_of(config, is_state=True) == ON
    asked = phased(Liveness.OffChipAfterFwd, weight=ON, optimizer=OFF)
    assert location_of(asked, is_state=False) == ON
    assert location_of(asked, is_state=True) == OFF
    assert not location_of(CompileConfig(True), is_state=False).is_remote(10**9)

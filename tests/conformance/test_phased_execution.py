"""Phased execution: semantics §9.4, api §10.4."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content, Store
from poptorch_emu.schedule.csv_text import from_csv, to_csv
from poptorch_emu.schedule.legality import check
from poptorch_emu.schedule.make import ScheduleKind, make_schedule
from poptorch_emu.schedule.phase_numbers import number_phases

pytestmark = pytest.mark.feature("Phased execution", fidelity="modelled")


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"b{index}"):
                x = torch.tanh(layer(x))
        with poptorch.Block("loss"):
            return x, poptorch.identity_loss(x, "sum")


def phases(*ipus: int) -> list[poptorch.Phase]:
    blocks = [["b0"], ["b1"], ["b2", "loss"]]
    return [
        poptorch.Phase(poptorch.Stage(*ids).ipu(ipu)) for ids, ipu in zip(blocks, ipus, strict=True)
    ]


def compiled(strategy, change=lambda options: None, *, is_training: bool = True):
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.setExecutionStrategy(strategy)
    change(options)
    model = Chain()
    if not is_training:
        inference = poptorch.inferenceModel(model, options)
        inference.compile(torch.randn(2, 4))
        return inference
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(2, 4))
    return training


def test_parallel_phases_when_on_the_wrong_ipus_then_raises() -> None:
    strategy = poptorch.ParallelPhasedExecution(*phases(0, 1, 1))
    with pytest.raises(
        poptorch.Error, match="When phases are executed in parallel.*even phases must run on even"
    ):
        compiled(strategy)


@pytest.mark.parametrize("name", ["OffChipAfterFwdNoOverlap", "OffChipAfterEachPhase"])
def test_liveness_when_phases_are_parallel_then_serial_only_ones_raise(name: str) -> None:
    strategy = poptorch.ParallelPhasedExecution(*phases(0, 1, 0))
    strategy._tensors_liveness = poptorch.Liveness[name]
    with pytest.raises(poptorch.Error, match="This is only supported for serial phase execution"):
        compiled(strategy)


# Phases are spaced by 1, 1, 2 and 4. Three phases stay empty when tensors leave, and one stays
# empty when backward is separate.
@pytest.mark.parametrize(
    ("liveness", "is_separate", "forward", "backward"),
    [
        ("AlwaysLive", False, (0, 1, 2), (4, 3, 2)),
        ("AlwaysLive", True, (0, 1, 2), (5, 4, 3)),
        ("OffChipAfterFwd", False, (0, 1, 2), (7, 6, 5)),
        ("OffChipAfterFwdNoOverlap", False, (0, 2, 4), (11, 9, 7)),
        ("OffChipAfterEachPhase", True, (0, 4, 8), (20, 16, 12)),
    ],
)
def test_phases_when_numbered_then_are_spaced_by_liveness(
    liveness: str, is_separate: bool, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    strategy = poptorch.SerialPhasedExecution(*phases(0, 0, 0))
    strategy.setTensorsLiveness(poptorch.Liveness[liveness])
    strategy.useSeparateBackwardPhase(is_separate)
    plan = emulator.schedule(compiled(strategy))
    assert plan.phases is not None
    assert (plan.phases.forward, plan.phases.backward) == (forward, backward)
    lines = str(plan).splitlines()[-3:]
    for index, line in enumerate(lines):
        assert line.endswith(f"phase {forward[index]} and {backward[index]}")


def test_serial_phases_when_on_one_ipu_then_each_is_a_stage_of_its_own() -> None:
    plan = emulator.schedule(compiled(poptorch.SerialPhasedExecution(*phases(0, 0, 0))))
    assert plan.grid.ipu_of_stage == (0, 0, 0)
    assert plan.phase_of_stage == (0, 1, 2)
    assert plan.to_csv() == "0F0,1F0,2F0|2B0,1B0,0B0,0U0\n"


@pytest.mark.parametrize(
    ("liveness", "store"),
    [("AlwaysLive", Store.ON_CHIP), ("OffChipAfterFwd", Store.REMOTE)],
)
def test_activations_when_liveness_is_off_chip_then_wait_in_streaming_memory(
    liveness: str, store: Store
) -> None:
    strategy = poptorch.SerialPhasedExecution(*phases(0, 0, 0))
    strategy.setTensorsLiveness(poptorch.Liveness[liveness])
    plan = emulator.memory(compiled(strategy))
    stashes = [held for held in plan.select(content=Content.STASH) if "input" not in held.name]
    assert stashes
    assert {held.store for held in stashes} == {store}


WEIGHT = 4 * (4 * 4 + 4)
ITEM = 4 * 2 * 4


def serial(liveness: str, change=lambda options: None, *, is_training: bool = True):
    """Returns the plan of three phases on one IPU: a layer each, one micro-batch of two rows."""
    strategy = poptorch.SerialPhasedExecution(*phases(0, 0, 0))
    strategy.setTensorsLiveness(poptorch.Liveness[liveness])
    return emulator.memory(compiled(strategy, change, is_training=is_training))


def of_phases(plan) -> tuple[int, int]:
    """Returns the remote bytes of weights, and of values that cross from one phase to another."""
    kinds = (Content.WEIGHT, Content.CHANNEL)
    weights, channels = (plan.num_bytes(content=kind, store=Store.REMOTE) for kind in kinds)
    return weights, channels


@pytest.mark.parametrize(
    ("liveness", "weights", "channels"),
    [
        ("AlwaysLive", 0, 0),
        ("OffChipAfterFwd", 3 * WEIGHT, 0),
        ("OffChipAfterFwdNoOverlap", 3 * WEIGHT, 0),
        # Two activations go to later phases in forward, and two gradients in backward.
        ("OffChipAfterEachPhase", 3 * WEIGHT, 4 * ITEM),
    ],
)
def test_tensors_when_liveness_is_set_then_leave_the_chip_as_it_says(
    liveness: str, weights: int, channels: int
) -> None:
    plan = serial(liveness)
    assert of_phases(plan) == (weights, channels)
    assert plan.num_bytes(content=Content.WEIGHT) == 3 * WEIGHT
    assert plan.num_bytes(content=Content.ACCUMULATOR, store=Store.REMOTE) == 0


def test_tensors_when_phases_are_parallel_then_leave_each_ipu() -> None:
    strategy = poptorch.ParallelPhasedExecution(*phases(0, 1, 0)).sendTensorsOffChipAfterFwd()
    plan = emulator.memory(compiled(strategy))
    held = [plan.num_bytes(ipu, Content.WEIGHT, Store.REMOTE) for ipu in (0, 1)]
    assert held == [2 * WEIGHT, WEIGHT]
    assert plan.num_bytes(content=Content.WEIGHT, store=Store.ON_CHIP) == 0


@pytest.mark.parametrize(
    ("liveness", "num_held"),
    [("OffChipAfterFwd", 2), ("OffChipAfterFwdNoOverlap", 1), ("OffChipAfterEachPhase", 1)],
)
def test_workspace_when_phases_are_apart_then_holds_the_weights_of_one(
    liveness: str, num_held: int
) -> None:
    """Beside its weights, a layer holds its result before and after tanh, perhaps its input."""
    plan = serial(liveness, is_training=False)
    arrived = ITEM if liveness == "OffChipAfterEachPhase" else 0
    expected = num_held * (WEIGHT + arrived) + ITEM
    assert expected <= plan.num_bytes(content=Content.WORKSPACE) <= expected + ITEM


def test_tensors_when_a_place_is_asked_for_then_they_are_there() -> None:
    def on_chip(options: poptorch.Options) -> None:
        here = poptorch.TensorLocationSettings().useOnChipStorage(True)
        options.TensorLocations.setWeightLocation(here).setActivationLocation(here)

    plan = serial("OffChipAfterEachPhase", on_chip)
    assert plan.num_bytes(store=Store.REMOTE) == 0 and not plan.movements

    def large_weights_off_chip(options: poptorch.Options) -> None:
        away = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(16)
        options.TensorLocations.setWeightLocation(away)

    plan = serial("OffChipAfterEachPhase", large_weights_off_chip)
    assert of_phases(plan) == (3 * 4 * 4 * 4, 4 * ITEM)


def test_schedule_when_tensors_leave_then_says_how_much_each_segment_moves() -> None:
    strategy = poptorch.SerialPhasedExecution(*phases(0, 0, 0))
    strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase)
    plan = emulator.schedule(compiled(strategy))
    moved = {movement.segment: movement for movement in plan.movements}
    assert moved["forward 0"].loaded_bytes == WEIGHT
    assert moved["forward 1"].loaded_bytes == WEIGHT + ITEM
    # Forward 0 sends its result to the next phase, and keeps it for its own backward.
    assert moved["forward 0"].stored_bytes == 2 * ITEM
    assert (moved["update 0"].loaded_bytes, moved["update 0"].stored_bytes) == (3 * WEIGHT,) * 2
    assert "forward 0: reads 0.1 KiB from streaming memory and writes 0.1 KiB to it" in str(plan)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 4))
def test_numbers_when_any_then_backward_mirrors_forward_and_follows_it(
    num_phases: int, spacing: int, gap: int
) -> None:
    numbers = number_phases(num_phases, spacing, gap, is_training=True)
    sums = {f + b for f, b in zip(numbers.forward, numbers.backward, strict=True)}
    assert len(sums) == 1
    assert min(numbers.backward) - max(numbers.forward) == gap
    assert len(set(numbers.forward)) == num_phases
    assert number_phases(num_phases, spacing, gap, is_training=False).backward == ()


class Diamond(torch.nn.Module):
    """Two layers that read the same input, and one that reads both; `is_chain` joins the two."""

    def __init__(self, *, is_chain: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
        self.is_chain = is_chain

    def forward(self, x: torch.Tensor):
        with poptorch.Block("a"):
            a = torch.tanh(self.a(x))
        with poptorch.Block("b"):
            b = torch.tanh(self.b(a if self.is_chain else x))
        with poptorch.Block("c"):
            c = self.c(a * b)
            return c, poptorch.identity_loss(c, "sum")


def two_beside(ipu: int = 2) -> poptorch.SerialPhasedExecution:
    first = poptorch.Phase(poptorch.Stage("a").ipu(0), poptorch.Stage("b").ipu(ipu))
    return poptorch.SerialPhasedExecution(first, poptorch.Phase(poptorch.Stage("c").ipu(1)))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("is_chain", [True, False])
def test_schedule_when_stages_of_a_phase_are_independent_then_they_run_side_by_side(
    is_training: bool, is_chain: bool
) -> None:
    options = poptorch.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    options.setExecutionStrategy(two_beside())
    model, x = Diamond(is_chain=is_chain), torch.randn(8, 4)
    if is_training:
        options.Training.gradientAccumulation(4)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = poptorch.trainingModel(model, options, optimizer)
    else:
        wrapped = poptorch.inferenceModel(model, options.deviceIterations(4))
    plain = copy.deepcopy(model)
    wrapped(x)
    grid = emulator.schedule(wrapped).grid
    check(grid)
    slot = {str(action): slot for action, slot in grid.slot_of.items()}
    assert (slot["0F3"] == slot["1F3"]) == (not is_chain)
    assert slot["1F3"] < slot["2F3"]
    num_levels = 3 if is_chain else 2
    period = 2 * num_levels - 1 if is_training else num_levels
    assert grid.num_slots == 4 * period + is_training
    if is_training:
        assert (slot["0B3"] == slot["1B3"]) == (not is_chain)
        reference = torch.optim.SGD(plain.parameters(), lr=0.1)
        sum(plain(rows)[1] for rows in x.chunk(4)).div(4).backward()
        reference.step()
        for value, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(value, expected)
    else:
        torch.testing.assert_close(wrapped(x)[0], plain(x)[0])


def test_schedule_when_stages_of_a_phase_share_an_ipu_then_one_follows_the_other() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(
        poptorch.SerialPhasedExecution(
            poptorch.Phase(
                poptorch.Stage("a").ipu(0), poptorch.Stage("b").ipu(1), poptorch.Stage("c").ipu(0)
            )
        )
    )
    inference = poptorch.inferenceModel(Diamond(), options)
    inference.compile(torch.randn(2, 4))
    grid = emulator.schedule(inference).grid
    assert grid.levels == (0, 0, 1)
    assert from_csv(to_csv(grid)) == grid


def test_schedule_when_levels_and_stages_differ_in_number_then_refused() -> None:
    with pytest.raises(ValueError, match="2 levels are given for 3 stages"):
        make_schedule(ScheduleKind.SERIAL_PHASED, (0, 1, 2), 2, False, (0, 0))

"""Compares the memory plan with closed formulas and with the counters of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.helpers import Setting
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content, Holding, MemoryPlan, Store

ROWS, WIDTH, STAGES = 5, 16, 4


class Chain(torch.nn.Module):
    """Square layers with tanh, one for each stage; on request with a checkpoint before the tanh."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(STAGES)])
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=index):
                x = torch.tanh(layer(x))
                if self.is_checkpointed:
                    x = poptorch.recomputationCheckpoint(x)
                x = torch.tanh(x + 1)
        with poptorch.Block("loss", ipu_id=STAGES - 1):
            return x, poptorch.identity_loss(x, "sum")


def compiled(model: torch.nn.Module, setting: Setting, recomputation: int | None, change=None):
    options = setting.options()
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    if change:
        change(options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(torch.randn(ROWS * setting.num_micro_batches, WIDTH))
    return training


def stash(plan: MemoryPlan, ipu: int) -> list[Holding]:
    return list(plan.select(ipu, Content.STASH))


PIPELINE = Setting("pipelined", accumulation=8)
ACTIVATION = ROWS * WIDTH * 4


def test_stash_when_pipelined_by_default_then_keeps_what_enters_and_leaves_the_stage() -> None:
    plan = emulator.memory(compiled(Chain(), PIPELINE, None))
    for stage in range(STAGES - 1):
        held = stash(plan, stage)
        assert sum(piece.item_bytes for piece in held) == 2 * ACTIVATION
        # The published depth of a stash, with stages counted from 1.
        assert {piece.copies for piece in held} == {2 * (STAGES - (stage + 1)) + 1}


@pytest.mark.parametrize(
    ("recomputation", "is_checkpointed", "num_kept"),
    [(0, False, 3), (0, True, 3), (3, False, 2), (3, True, 3), (4, False, 1), (4, True, 2)],
)
def test_stash_when_recomputation_is_chosen_then_holds_what_it_does_not_compute_again(
    recomputation: int, is_checkpointed: bool, num_kept: int
) -> None:
    """A stash holds the stage's input, both results of tanh, or the checkpoint between them."""
    plan = emulator.memory(compiled(Chain(is_checkpointed), PIPELINE, recomputation))
    for stage in range(STAGES - 1):
        items = sum(piece.item_bytes for piece in stash(plan, stage))
        assert items == num_kept * ACTIVATION


def test_stash_when_order_is_interleaved_then_is_smaller_than_grouped() -> None:
    def interleave(options: poptorch.Options) -> None:
        emulator.set_schedule(options, "interleaved")

    plan = emulator.memory(compiled(Chain(), PIPELINE, None, interleave))
    for stage in range(STAGES - 1):
        assert {piece.copies for piece in stash(plan, stage)} == {STAGES - stage}


def test_stash_when_backward_is_cut_then_what_weights_need_waits_and_is_counted() -> None:
    """The gradient of a weight needs the layer's input and the gradient of its result."""
    micro_batches, kept = 8, {}

    def change(options: poptorch.Options) -> None:
        rows = [[f"{s}F{m}" for m in range(micro_batches)] for s in range(STAGES)]
        for stage, row in enumerate(rows):
            row += [f"{stage}I{m}" for m in range(micro_batches)]
            row += [f"{stage}W{m}" for m in range(micro_batches)]
        emulator.set_schedule(options, emulator.schedules.from_table(rows))

    for name, changed in (("whole", None), ("cut", change)):
        plan = emulator.memory(compiled(Chain(), PIPELINE, 0, changed))
        kept[name] = sum(piece.item_bytes for piece in stash(plan, 1))
        if name == "cut":
            assert {piece.copies for piece in stash(plan, 1)} == {micro_batches}
    # The first half of backward reads the input and both results of tanh. The second half reads the
    # input and the gradient before the first tanh, which the bias also needs.
    assert (kept["whole"], kept["cut"]) == (3 * ACTIVATION, 4 * ACTIVATION)


def test_variables_when_adam_then_two_states_a_weight_on_the_same_ipu() -> None:
    plan = emulator.memory(compiled(Chain(), PIPELINE, None))
    layer = (WIDTH * WIDTH + WIDTH) * 4
    for ipu in range(STAGES):
        assert plan.num_bytes(ipu, Content.WEIGHT) == layer
        assert plan.num_bytes(ipu, Content.ACCUMULATOR) == layer
        # Each weight has two moments, and may have a step count of 4 bytes.
        assert 2 * layer <= plan.num_bytes(ipu, Content.STATE) <= 2 * layer + 16


def engine_of(training):
    return training._session._executor


ORDERS = ("grouped", "looped_bfs", "zero_bubble_h2", "zero_bubble_v", "dualpipe_v")


@pytest.mark.parametrize("recomputation", [0, 1, 3, 4])
@pytest.mark.parametrize("family", ["mlp", "resnet", "transformer"])
@pytest.mark.parametrize("order", ORDERS)
def test_plan_when_the_model_has_run_then_the_engine_counts_the_same(
    order: str, family: str, recomputation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_ORDER", "schedule")
    setting = Setting("pipelined", accumulation=8)
    options = setting.options()
    emulator.set_schedule(options, order)
    options._Popart.set("autoRecomputation", recomputation)
    emulator.set_recomputation(options, "executed")
    model = FAMILIES[family].make(STAGES)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options, optimizer)
    training(*FAMILIES[family].batch(2 * setting.num_micro_batches))
    plan = emulator.memory(training)
    engine = engine_of(training)
    variables = plan.num_bytes(content=Content.WEIGHT) + plan.num_bytes(content=Content.STATE)
    assert engine.variable_bytes() == variables
    links = [*plan.select(content=Content.STASH), *plan.select(content=Content.CHANNEL)]
    planned = sorted(held.copies for held in links if not held.name.startswith("input"))
    peaks = sorted(items for items, _ in engine.link_peaks())
    assert len(peaks) == len(planned)
    assert all(peak <= depth for peak, depth in zip(peaks, planned, strict=True))
    # The engine may run ahead or behind, but the stash of stage 0 always becomes full.
    assert max(peaks) == max(planned)


KINDS = ("Weight", "Optimizer", "Accumulator")


def shard(kinds: tuple[str, ...], min_elements: int = 0):
    """Returns a change of the options that divides such tensors among the replicas."""

    def change(options: poptorch.Options) -> None:
        options.autoRoundNumIPUs(True)
        for kind in kinds:
            location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
            location.minElementsForReplicatedTensorSharding(min_elements)
            getattr(options.TensorLocations, f"set{kind}Location")(location)

    return change


def assert_plan_is_what_each_replica_held(training, replicas: int) -> MemoryPlan:
    """Compares the plan with the engine's counters after a run of `training`."""
    plan, engine = emulator.memory(training), engine_of(training)
    held = plan.num_bytes(content=Content.WEIGHT) + plan.num_bytes(content=Content.STATE)
    assert [engine.replica_bytes(replica) for replica in range(replicas)] == [held] * replicas
    added = plan.num_bytes(content=Content.ACCUMULATOR)
    peaks = [engine.peak_accumulator_bytes(replica) for replica in range(replicas)]
    assert peaks == [added] * replicas
    return plan


@pytest.mark.parametrize("kinds", [(), *((kind,) for kind in KINDS), KINDS], ids="-".join)
@pytest.mark.parametrize("rule", ["AdamW", "LAMB"])
def test_plan_when_tensors_are_sharded_then_a_replica_holds_its_part(
    rule: str, kinds: tuple[str, ...]
) -> None:
    setting = Setting("sharded", accumulation=2, replicas=3)
    model = FAMILIES["mlp"].make(2)
    options = setting.options()
    shard(kinds)(options)
    optimizer = getattr(poptorch.optim, rule)(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    training(*FAMILIES["mlp"].batch(2 * setting.num_micro_batches))
    plan = assert_plan_is_what_each_replica_held(training, setting.replicas)
    sharded = {held.content for held in plan.holdings if held.is_shard}
    contents = dict(zip(KINDS, (Content.WEIGHT, Content.STATE, Content.ACCUMULATOR), strict=True))
    assert sharded == {contents[kind] for kind in kinds}


def test_plan_when_only_large_tensors_are_sharded_then_parts_are_rounded_up() -> None:
    replicas = 3
    setting = Setting("pipelined", accumulation=8, replicas=replicas)
    plan = emulator.memory(compiled(Chain(), setting, None, shard(KINDS, WIDTH * WIDTH)))
    part = -(-WIDTH * WIDTH // replicas)
    for ipu in range(STAGES):
        for content, copies in ((Content.WEIGHT, 1), (Content.ACCUMULATOR, 1), (Content.STATE, 2)):
            sizes = [held.item_bytes for held in plan.select(ipu, content) if held.item_bytes > 4]
            assert sorted(sizes) == [WIDTH * 4] * copies + [part * 4] * copies
    whole = emulator.memory(compiled(Chain(), setting, None, shard(())))
    assert plan.num_bytes(0, Content.WORKSPACE) < whole.num_bytes(0, Content.WORKSPACE)


class Grouped(torch.nn.Module):
    """A square layer with a weight for each of two groups of replicas, and a common weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2, WIDTH, WIDTH))
        self.common = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor):
        x = self.common(x @ self.weight)
        return x, poptorch.identity_loss(x, "sum")


def test_plan_when_groups_have_their_own_weights_then_a_replica_holds_one_copy_whole() -> None:
    setting = Setting("sharded", accumulation=2, replicas=4)
    model = Grouped()
    options = setting.options()
    shard(KINDS)(options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer)
    training.weight.replicaGrouping(
        poptorch.CommGroupType.Consecutive, 2, poptorch.VariableRetrievalMode.OnePerGroup
    )
    training(torch.randn(ROWS * setting.num_micro_batches, WIDTH))
    plan = assert_plan_is_what_each_replica_held(training, setting.replicas)
    whole = [held for held in plan.holdings if held.name.rpartition("___")[2] == "weight"]
    sizes = [held.item_bytes for held in whole if held.item_bytes > 4]
    assert sizes == [WIDTH * WIDTH * 4] * 4
    assert not any(held.is_shard for held in whole)


def test_memory_when_off_chip_then_leaves_the_ipu_and_the_engine_moves_it() -> None:
    def change(options: poptorch.Options) -> None:
        emulator.set_recomputation(options, "executed")
        away = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setOptimizerLocation(away)
        options.TensorLocations.setActivationLocation(away)
        options.TensorLocations.setWeightLocation(
            poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(100)
        )

    training = compiled(Chain(), PIPELINE, None, change)
    plan = emulator.memory(training)
    assert plan.num_bytes(content=Content.WEIGHT, store=Store.REMOTE) == STAGES * WIDTH * WIDTH * 4
    assert plan.num_bytes(content=Content.WEIGHT, store=Store.ON_CHIP) == STAGES * WIDTH * 4
    assert plan.num_bytes(content=Content.ACCUMULATOR, store=Store.REMOTE) == 0
    stashes = [held for held in plan.select(content=Content.STASH) if "input" not in held.name]
    # Only the loss stays on chip, because its single number is below the default threshold of 2.
    assert [held.item_bytes for held in stashes if held.store is Store.ON_CHIP] == [4]

    engine = engine_of(training)
    assert engine.remote_loaded_bytes() == 0
    training(torch.randn(ROWS * PIPELINE.num_micro_batches, WIDTH))
    state = plan.num_bytes(content=Content.STATE, store=Store.REMOTE)
    moved = PIPELINE.accumulation * sum(held.item_bytes for held in stashes if held.item_bytes > 4)
    weights = STAGES * WIDTH * WIDTH * 4
    # Each state and weight is updated once; each stashed item is stored once and loaded once.
    assert engine.remote_stored_bytes() == state + weights + moved
    # Each forward, each backward and the update may load the weights.
    reads = 2 * PIPELINE.accumulation + 1
    assert state + moved + weights < engine.remote_loaded_bytes() <= state + moved + reads * weights


def test_plan_when_a_depth_and_io_tiles_are_asked_for_then_shows_copies_and_place() -> None:
    def change(options: poptorch.Options) -> None:
        options._Popart.set("defaultPrefetchBufferingDepth", 3)
        options.TensorLocations.numIOTiles(32)
        stored = poptorch.TensorLocationSettings().useIOTilesToStore()
        options.TensorLocations.setOptimizerLocation(stored).setActivationLocation(stored)

    plan = emulator.memory(compiled(Chain(), PIPELINE, None, change))
    assert [held.copies for held in plan.select(content=Content.INPUT)] == [3]
    stashes = [held for held in plan.select(content=Content.STASH) if "input" not in held.name]
    moved = plan.num_bytes(content=Content.STATE) + sum(held.num_bytes for held in stashes)
    assert plan.num_bytes(store=Store.IO_TILES) == moved


class Limited(torch.nn.Module):
    """Two products on IPU 1, one with its own memory proportion."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor):
        with poptorch.Block("zero", ipu_id=0):
            x = torch.tanh(x)
        with poptorch.Block("one", ipu_id=1):
            x = poptorch.set_available_memory(self.first(x), 0.25)
            return self.second(x)


def test_plan_when_limits_are_set_then_shows_them_below_the_table_also_from_a_file(
    tmp_path: Path,
) -> None:
    def text(change) -> list[str]:
        options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
        options.enableExecutableCaching(str(tmp_path))
        change(options)
        inference = poptorch.inferenceModel(Limited(), options)
        inference.compile(torch.randn(4, 4))
        return str(emulator.memory(inference)).splitlines()

    def limit(options: poptorch.Options) -> None:
        options.TensorLocations.numIOTiles(64)
        options.setAvailableMemoryProportion({"IPU1": 0.2, "IPU0": 0.6})
        options._Popart.set("enableOutlining", False)

    for _ in range(2):
        assert text(limit)[-5:] == [
            "64 tiles of each IPU are reserved for I/O",
            "IPU 0: products and convolutions may take 0.6 of its memory",
            "IPU 1: products and convolutions may take 0.2 of its memory",
            "IPU 1: 1 operation may take 0.25 of its memory each",
            "equal parts of the code are not merged",
        ]
    saving = text(lambda options: options._Popart.set("outlineThreshold", 10.0))
    assert saving[-1] == "equal parts of the code are stored once where that saves 10.0 or more"


def test_plan_when_printed_then_has_a_row_for_each_kind_and_a_csv_line_for_each_piece() -> None:
    plan = emulator.memory(compiled(Chain(), PIPELINE, None))
    text = str(plan)
    assert text.splitlines()[0].split() == (
        "IPU content pieces on chip KiB I/O tiles KiB remote KiB".split()
    )
    assert sum(line.split()[1] == "all" for line in text.splitlines()) == STAGES
    lines = plan.to_csv().splitlines()
    assert len(lines) == 1 + len(plan.holdings)
    total = sum(int(line.split(",")[3]) * int(line.split(",")[4]) for line in lines[1:])
    assert total == plan.num_bytes()

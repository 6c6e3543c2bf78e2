"""Compares the planned traffic with streaming memory with the engine's counters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.helpers import Setting
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.log import logger
from poptorch_emu.plan.memory.memory_plan import Content, Store

STAGES = 4
KINDS = ("Weight", "Optimizer", "Accumulator", "Activation")
BLOCKS = [["part0"], ["part1"], ["part2"], ["part3", "loss"]]


def serial(liveness: poptorch.Liveness):
    strategy = poptorch.SerialPhasedExecution(*(poptorch.Phase(*ids) for ids in BLOCKS))
    return strategy.setTensorsLiveness(liveness)


def parallel(ipus: tuple[int, ...] = (0, 1, 0, 1)):
    phases = [
        poptorch.Phase(poptorch.Stage(*ids).ipu(i)) for ids, i in zip(BLOCKS, ipus, strict=True)
    ]
    return poptorch.ParallelPhasedExecution(*phases).sendTensorsOffChipAfterFwd()


STRATEGIES = {
    "pipelined": lambda: poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu),
    "sharded": lambda: poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu),
    "parallel phases": parallel,
    **{
        f"serial phases {liveness.name}": lambda liveness=liveness: serial(liveness)
        for liveness in poptorch.Liveness
    },
}


def ran(family: str, setting: Setting, change):
    """Returns the plan, and the bytes that one call loaded and stored."""
    model = FAMILIES[family].make(STAGES)
    options = setting.options()
    change(options)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    training(*FAMILIES[family].batch(2 * setting.num_micro_batches))
    engine = training._session._executor
    counted = engine.remote_loaded_bytes(), engine.remote_stored_bytes()
    plan = emulator.memory(training)
    training.destroy()
    return plan, counted


def planned(plan) -> tuple[int, int]:
    loaded = sum(moved.loaded_bytes for moved in plan.movements)
    return loaded, sum(moved.stored_bytes for moved in plan.movements)


def locate(options: poptorch.Options, kinds: tuple[str, ...], *, is_cut: bool = False) -> None:
    for kind in kinds:
        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        location.useReplicatedTensorSharding(is_cut).minElementsForReplicatedTensorSharding(0)
        getattr(options.TensorLocations, f"set{kind}Location")(location)


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    list(itertools.product(STRATEGIES, [(), *((kind,) for kind in KINDS), KINDS])),
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "nothing",
)
def test_movements_when_a_call_has_run_then_are_what_the_engine_moved(
    strategy: str, kinds: tuple[str, ...]
) -> None:
    def change(options: poptorch.Options) -> None:
        options.setExecutionStrategy(STRATEGIES[strategy]())
        locate(options, kinds)

    plan, counted = ran("mlp", Setting("sharded", accumulation=8), change)
    assert planned(plan) == counted
    leaves = bool(kinds) or ("phases" in strategy and not strategy.endswith("AlwaysLive"))
    assert bool(plan.movements) == leaves


@pytest.mark.parametrize("recomputation", [0, 3, 4])
@pytest.mark.parametrize("family", ["resnet", "transformer"])
def test_movements_when_models_are_large_then_are_what_the_engine_moved(
    family: str, recomputation: int
) -> None:
    def change(options: poptorch.Options) -> None:
        options._Popart.set("autoRecomputation", recomputation)
        emulator.set_recomputation(options, "executed")
        locate(options, KINDS)

    plan, counted = ran(family, Setting("pipelined", accumulation=8), change)
    assert planned(plan) == counted


@pytest.mark.parametrize("family", ["resnet", "transformer", "embedding"])
def test_movements_when_models_run_in_leaving_phases_then_are_what_the_engine_moved(
    family: str,
) -> None:
    """Recurrent layers are absent, because the CPU kernel keeps its own data for backward."""

    def change(options: poptorch.Options) -> None:
        options.setExecutionStrategy(serial(poptorch.Liveness.OffChipAfterEachPhase))

    plan, counted = ran(family, Setting("sharded", accumulation=3), change)
    assert planned(plan) == counted
    assert plan.num_bytes(content=Content.WEIGHT, store=Store.ON_CHIP) == 0
    assert plan.num_bytes(content=Content.CHANNEL, store=Store.ON_CHIP) == 0


def test_movements_when_a_program_comes_from_a_file_then_are_still_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(options: poptorch.Options) -> None:
        options.enableExecutableCaching(str(tmp_path))
        locate(options, KINDS)

    caplog.set_level("INFO", logger=logger.name)
    setting = Setting("sharded", accumulation=2)
    written, _ = ran("mlp", setting, change)
    assert "loaded" not in caplog.text
    read, counted = ran("mlp", setting, change)
    assert "Executable cache: loaded" in caplog.text
    assert read == written and planned(read) == counted


def test_movements_when_sharded_then_each_replica_moves_its_part() -> None:
    plan, counted = ran(
        "mlp",
        Setting("sharded", accumulation=2, replicas=4),
        lambda options: locate(options, KINDS, is_cut=True),
    )
    assert tuple(4 * num_bytes for num_bytes in planned(plan)) == counted

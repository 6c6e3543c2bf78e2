"""Strategy × replicas × recomputation × streaming memory × sharding, all at once."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from support.helpers import Setting, plain_step
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = pytest.mark.feature(
    "Execution strategies, recomputation and offloading", fidelity="exact"
)

STAGES = 2


def pipelined(options: poptorch.Options, order: str) -> None:
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    emulator.set_schedule(options, order)


def serial(options: poptorch.Options, liveness: poptorch.Liveness) -> None:
    phases = poptorch.Phase("part0", "part1"), poptorch.Phase("part2", "part3", "loss")
    strategy = poptorch.SerialPhasedExecution(*phases).setTensorsLiveness(liveness)
    options.setExecutionStrategy(strategy)


def parallel(options: poptorch.Options) -> None:
    blocks = [["part0"], ["part1"], ["part2"], ["part3", "loss"]]
    phases = [poptorch.Phase(poptorch.Stage(*ids).ipu(i % 2)) for i, ids in enumerate(blocks)]
    strategy = poptorch.ParallelPhasedExecution(*phases).sendTensorsOffChipAfterFwd()
    options.setExecutionStrategy(strategy)


STRATEGIES = {
    "pipelined": lambda options: pipelined(options, "grouped"),
    "interleaved": lambda options: pipelined(options, "interleaved"),
    "sequential": lambda options: pipelined(options, "sequential"),
    "sharded": lambda options: options.setExecutionStrategy(
        poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu)
    ),
    "phased": lambda options: serial(options, poptorch.Liveness.AlwaysLive),
    "leaving phases": lambda options: serial(options, poptorch.Liveness.OffChipAfterEachPhase),
    "parallel phases": parallel,
}
KINDS = ("Activation", "Weight", "Optimizer", "Accumulator")
# (replicas, whether tensors are sharded over them). A single replica has nothing to shard.
REPLICAS = [(1, False), (2, False), (2, True), (4, True)]
CASES = [
    (strategy, *replicas, recompute, off_chip)
    for strategy, replicas, recompute, off_chip in itertools.product(
        STRATEGIES, REPLICAS, [0, 4], [False, True]
    )
]


def options_of(setting: Setting, strategy: str, recompute: int, off_chip: bool, cut: bool):
    """Returns options with all of these features."""
    options = setting.options()
    STRATEGIES[strategy](options)
    options._Popart.set("autoRecomputation", recompute)
    for kind in KINDS:
        location = poptorch.TensorLocationSettings()
        if off_chip:
            location.useOnChipStorage(False)
        location.minElementsForReplicatedTensorSharding(0)
        location.useReplicatedTensorSharding(cut)
        getattr(options.TensorLocations, f"set{kind}Location")(location)
    return options


@pytest.mark.parametrize(
    ("strategy", "replicas", "cut", "recompute", "off_chip"),
    CASES,
    ids=[
        f"{strategy}-r{replicas}-recompute{mode}-{'off' if off else 'on'}_chip-{'cut' * cut}"
        for strategy, replicas, cut, mode, off in CASES
    ],
)
def test_training_when_all_is_combined_then_equals_the_plain_loop(
    strategy: str, replicas: int, cut: bool, recompute: int, off_chip: bool
) -> None:
    setting = Setting("sharded", accumulation=4, replicas=replicas)
    torch.manual_seed(5)
    plain = FAMILIES["mlp"].make(STAGES)
    model = copy.deepcopy(plain)
    options = options_of(setting, strategy, recompute, off_chip, cut)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    reference = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for _ in range(2):
        batch = FAMILIES["mlp"].batch(2 * setting.num_micro_batches)
        expected = plain_step(plain, reference, batch, setting)
        torch.testing.assert_close(training(*batch)[1].reshape(-1), expected, rtol=1e-4, atol=1e-5)
    training.destroy()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-5)

"""Sharding of activations: only activations that are equal on all replicas are sharded."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from support.helpers import Setting, plain_step
from support.joining import join

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content

pytestmark = pytest.mark.feature("Replicated tensor sharding of activations", fidelity="exact")

WIDTH, CLASSES, ROWS = 7, 3, 2


class Positions(torch.nn.Module):
    """A layer whose result is scaled by a table that is computed from a weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(WIDTH))
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.last = torch.nn.Linear(WIDTH, CLASSES)
        self.loss = torch.nn.CrossEntropyLoss()

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table)

    def forward(self, x: torch.Tensor, target: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.layer(x) * self.scale(x)
        with poptorch.Block("second", ipu_id=1):
            x = self.last(x)
            return x, self.loss(x, target)


class OfInput(Positions):
    """A layer whose table depends on the replica's data."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table * x.sum())


class Random(Positions):
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table + torch.rand(WIDTH))


class Written(Positions):
    """A layer whose table depends on a buffer that each replica changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return torch.tanh(self.table * self.count)


class FromHost(Positions):
    """A layer whose table comes from the host, which may return another one for each replica."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        answer = poptorch.CPU(lambda table: table + 1, "host")(self.table.detach())
        return torch.tanh(self.table * answer)


class Looped(Positions):
    """A layer whose table is computed in a loop of the device that reads the weight."""

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.for_loop(3, lambda value: torch.tanh(value + self.table), [self.table])[0]


def options_of(setting: Setting, strategy: str, is_cut: bool, off_chip: bool = False):
    """Returns options without recomputation."""
    options = setting.options()
    make = getattr(poptorch, f"{strategy}Execution")
    options.setExecutionStrategy(make(poptorch.AutoStage.SameAsIpu))
    options._Popart.set("autoRecomputation", 0)
    options.broadcastBuffers(False).autoRoundNumIPUs(True)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(is_cut)
    if off_chip:
        location.useOnChipStorage(False)
    location.minElementsForReplicatedTensorSharding(WIDTH)
    options.TensorLocations.setActivationLocation(location)
    return options


def batch(setting: Setting):
    rows = ROWS * setting.num_micro_batches
    return torch.randn(rows, WIDTH), torch.randint(CLASSES, (rows,))


def wrapped(model: torch.nn.Module, options: poptorch.Options):
    return poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))


def stashes(training, *, is_shard: bool):
    held = emulator.memory(training).select(content=Content.STASH)
    return [piece for piece in held if piece.is_shard == is_shard]


@pytest.mark.parametrize(
    ("module", "strategy", "replicas", "off_chip"),
    [
        *itertools.product([Positions], ["Pipelined", "Sharded"], [1, 2, 3, 4], [False, True]),
        *itertools.product([Looped], ["Pipelined"], [2], [False, True]),
    ],
)
def test_training_when_activations_are_sharded_then_has_the_bits_of_the_whole_run(
    module, strategy: str, replicas: int, off_chip: bool
) -> None:
    setting = Setting("sharded", accumulation=4, replicas=replicas)
    model = module()
    plain = copy.deepcopy(model)
    batches = [batch(setting) for _ in range(3)]
    results = []
    for is_cut in (False, True):
        trained = copy.deepcopy(model)
        training = wrapped(trained, options_of(setting, strategy, is_cut, off_chip))
        losses = [training(*values)[1] for values in batches]
        results.append([*losses, *trained.state_dict().values()])
        assert bool(stashes(training, is_shard=True)) == (is_cut and replicas > 1)
        training.destroy()
    for whole, cut in zip(*results, strict=True):
        assert torch.equal(whole, cut)
    if module is Positions:
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        expected = [plain_step(plain, optimizer, values, setting) for values in batches]
        found = torch.cat([loss.reshape(-1) for loss in results[1][:3]])
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("replicas", [2, 3])
def test_stash_when_sharded_then_a_replica_holds_what_the_plan_says(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(monkeypatch, 1)
    setting = Setting("sharded", accumulation=4, replicas=replicas)
    training = wrapped(Positions(), options_of(setting, "Pipelined", is_cut=True))
    training(*batch(setting))
    (cut,) = stashes(training, is_shard=True)
    assert cut.item_bytes == -(-WIDTH // replicas) * 4
    assert cut.copies == 2 * (2 - 1) + 1
    # One link is sharded. The planned bytes equal the most that its end on a replica ever held.
    peaks = training._session._executor.link_peaks()
    assert cut.num_bytes in [num_bytes for _, num_bytes in peaks]
    (whole,) = [s for s in stashes(training, is_shard=False) if s.name == cut.name]
    uncut = wrapped(Positions(), options_of(setting, "Pipelined", is_cut=False))
    uncut.compile(*batch(setting))
    (both,) = [s for s in stashes(uncut, is_shard=False) if s.name == cut.name]
    assert both.item_bytes == whole.item_bytes + WIDTH * 4


@pytest.mark.parametrize("module", [OfInput, Random, Written, FromHost])
def test_stash_when_values_are_the_replicas_own_then_whole(module) -> None:
    setting = Setting("sharded", accumulation=4, replicas=2)
    training = wrapped(module(), options_of(setting, "Sharded", is_cut=True))
    training.compile(*batch(setting))
    assert stashes(training, is_shard=False)
    assert not stashes(training, is_shard=True)


def test_stash_when_groups_have_their_own_weights_then_whole() -> None:
    setting = Setting("sharded", accumulation=4, replicas=2)
    model = Positions()
    model.table = torch.nn.Parameter(torch.randn(2, WIDTH))
    training = wrapped(model, options_of(setting, "Sharded", is_cut=True))
    training.table.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    )
    training.compile(*batch(setting))
    assert not stashes(training, is_shard=True)


def test_stash_when_replicas_read_the_same_rows_then_parts_of_the_activations_too() -> None:
    setting = Setting("sharded", accumulation=4, replicas=2)
    options = options_of(setting, "Sharded", is_cut=True)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    training = wrapped(OfInput(), options)
    rows = ROWS * setting.accumulation
    training.compile(torch.randn(rows, WIDTH), torch.randint(CLASSES, (rows,)))
    assert sum(piece.item_bytes for piece in stashes(training, is_shard=True)) > WIDTH * 4


def test_stash_when_smaller_than_the_threshold_then_whole() -> None:
    setting = Setting("sharded", accumulation=4, replicas=2)
    options = options_of(setting, "Sharded", is_cut=True)
    location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    options.TensorLocations.setActivationLocation(
        location.minElementsForReplicatedTensorSharding(WIDTH + 1)
    )
    training = wrapped(Positions(), options)
    training.compile(*batch(setting))
    assert not stashes(training, is_shard=True)

"""Random cuts of models, in any order, have legal schedules and the plain loop's numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import Setting, plain_step

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content
from poptorch_emu.schedule.legality import check

WIDTH = 4


class Cut(torch.nn.Module):
    """A chain of layers, each on the IPU in `ipus`."""

    def __init__(self, ipus: list[int]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in ipus])
        self.ipus = ipus

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=self.ipus[index]):
                x = torch.tanh(layer(x))
        with poptorch.Block("loss", ipu_id=self.ipus[-1]):
            return x, torch.nn.functional.cross_entropy(x, labels)


@settings(max_examples=8)
@given(
    ipus=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    order=st.sampled_from(["grouped", "interleaved", "sequential"]),
    recomputation=st.integers(0, 4),
    extra=st.integers(0, 3),
)
def test_training_when_cut_at_random_then_is_legal_and_equals_plain_pytorch(
    ipus: list[int], order: str, recomputation: int, extra: int
) -> None:
    setting = Setting(accumulation=2 * len(ipus) + 1 + extra)
    options = setting.options().autoRoundNumIPUs(True)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options._Popart.set("autoRecomputation", recomputation)
    emulator.set_schedule(options, order)
    assert_trains_as_plain(ipus, setting, options)


@settings(max_examples=8)
@given(
    ipus=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    liveness=st.sampled_from(poptorch.Liveness),
    is_separate=st.booleans(),
    recomputation=st.integers(0, 4),
    replicas=st.integers(1, 2),
)
def test_training_when_cut_into_phases_at_random_then_is_legal_and_equals_plain_pytorch(
    ipus: list[int],
    liveness: poptorch.Liveness,
    is_separate: bool,
    recomputation: int,
    replicas: int,
) -> None:
    setting = Setting("sharded", accumulation=2, replicas=replicas)
    options = setting.options().autoRoundNumIPUs(True)
    blocks = [[f"part{index}"] for index in range(len(ipus))]
    blocks[-1].append("loss")
    phases = [
        poptorch.Phase(poptorch.Stage(*ids).ipu(i)) for ids, i in zip(blocks, ipus, strict=True)
    ]
    strategy = poptorch.SerialPhasedExecution(*phases).setTensorsLiveness(liveness)
    options.setExecutionStrategy(strategy.useSeparateBackwardPhase(is_separate))
    options._Popart.set("autoRecomputation", recomputation)
    assert_trains_as_plain(ipus, setting, options)


class Web(torch.nn.Module):
    """Layers in a random order of IPUs, each of which adds up some earlier values."""

    def __init__(self, ipus: list[int], inputs: list[set[int]]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in ipus])
        self.ipus, self.inputs = ipus, inputs

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: list[torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"part{index}", ipu_id=self.ipus[index]):
                used = sum((values[other] for other in sorted(self.inputs[index])), x)
                values.append(torch.tanh(layer(used)))
        return tuple(values)


@settings(max_examples=20)
@given(data=st.data())
def test_stages_when_entered_in_any_order_then_refused_only_if_a_value_goes_backwards(
    data: st.DataObject,
) -> None:
    ipus = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
    edges = [(a, b) for b in range(len(ipus)) for a in range(b)]
    is_careful = data.draw(st.booleans())
    allowed = [(a, b) for a, b in edges if ipus[a] <= ipus[b] or not is_careful]
    chosen = data.draw(st.sets(st.sampled_from(allowed)) if allowed else st.just(set()))
    model = Web(ipus, [{a for a, b in chosen if b == index} for index in range(len(ipus))])
    options = Setting(iterations=4).options().autoRoundNumIPUs(True)
    inference = poptorch.inferenceModel(model, options)
    x = torch.randn(8, WIDTH)
    if any(ipus[a] > ipus[b] for a, b in chosen):
        with pytest.raises(poptorch.Error, match="cannot go backwards"):
            inference(x)
        return
    torch.testing.assert_close(inference(x), model(x))
    grid = emulator.schedule(inference).grid
    check(grid)
    assert grid.num_stages == len({0, *ipus})


def assert_trains_as_plain(ipus: list[int], setting: Setting, options: poptorch.Options) -> None:
    """Compares one call with the plain loop, and the plans with known facts."""
    model = Cut(ipus)
    plain = copy.deepcopy(model)
    rows = 2 * setting.num_micro_batches
    batch = torch.randn(rows, WIDTH), torch.randint(WIDTH, (rows,))

    training = poptorch.trainingModel(
        model, options, poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    losses = training(*batch)[1].reshape(-1)

    expected = plain_step(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batch, setting)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    check(emulator.schedule(training).grid)
    plan = emulator.memory(training)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert plan.num_bytes(content=Content.WEIGHT) == weights
    training.destroy()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)

"""Exchanges between replicas in the model of the machine: time, memory and timeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions.poptorch_experimental_addons import collectives
from poptorch_emu.machine.costs.collective import Replicas, all_gather, all_reduce, all_to_all
from poptorch_emu.machine.costs.tiles import Tiles
from poptorch_emu.machine.ipu import MK2
from poptorch_emu.machine.links import all_reduce_seconds
from poptorch_emu.machine.time_numbers import NUMBERS

TILES = Tiles(MK2, MK2.num_tiles)
MANY = 4 * 2**20


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("num_ipus", [1, 2])
def test_cost_of_an_exchange_then_is_that_of_a_ring(count: int, num_ipus: int) -> None:
    replicas = Replicas(count, num_ipus)
    ring = all_reduce_seconds(MANY, count, num_ipus) * MK2.clock_hz
    of_sum = all_reduce(MANY // 4, 4, replicas, TILES)
    # Other exchanges between tiles are small compared with the ring.
    assert of_sum.exchange_cycles == pytest.approx(ring, rel=0.03)
    assert all_gather(MANY, replicas, TILES).exchange_cycles == pytest.approx(ring / 2, rel=0.03)
    # Each link transfers (count - 1) / 2 times the bytes of a replica.
    rate = 58.4e9 / num_ipus
    hop = NUMBERS.hop_seconds if count * num_ipus <= 4 else NUMBERS.machine_hop_seconds
    links = (MANY * (count - 1) / 2 / rate + (count - 1) * hop) * MK2.clock_hz
    assert all_to_all(MANY, replicas, TILES).exchange_cycles == pytest.approx(links, rel=0.05)


class Model(torch.nn.Module):
    def __init__(self, num_replicas: int, exchanges: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64))
        self.num_replicas, self.exchanges = num_replicas, exchanges

    def forward(self, x: torch.Tensor):
        y = torch.tanh(x @ self.weight)
        if self.exchanges:
            y = collectives.all_gather_cross_replica(y, self.num_replicas).sum(0)
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def training(num_replicas: int, exchanges: bool = True) -> poptorch.PoplarExecutor:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.replicationFactor(num_replicas)
    options.Training.gradientAccumulation(2)
    model = Model(num_replicas, exchanges)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)


@pytest.mark.parametrize("num_replicas", [2, 8])
def test_exchange_then_its_operations_take_their_costs(num_replicas: int) -> None:
    x = torch.randn(2 * num_replicas * 128, 64)
    plan = emulator.estimate(training(num_replicas), x, system="mk2-pod16")
    found = {op.operator: op for op in plan.all_operations if op.family == "collective"}
    of_gather = found["poptorch_emu::all_gather"]
    num_bytes = num_replicas * 128 * 64 * 4
    replicas = Replicas(num_replicas, 1)
    assert of_gather.segment == "forward 0"
    assert of_gather.cycles == pytest.approx(all_gather(num_bytes, replicas, TILES).cycles)
    # The gradient is summed over the replicas, and then each selects its own piece.
    of_sum = found["poptorch_emu::all_reduce"]
    assert of_sum.segment == "backward 0"
    expected = all_reduce(num_bytes // 4, 4, replicas, TILES)
    assert of_sum.cycles == pytest.approx(expected.cycles)
    (stage,) = plan.stages
    assert stage.forward.reduce_cycles == pytest.approx(of_gather.exchange_cycles)
    assert stage.backward.reduce_cycles == pytest.approx(of_sum.exchange_cycles)
    assert any("reach each exchange between them at the same time" in a for a in plan.assumptions)
    # Other operations have the same cycles as without exchanges.
    assert stage.forward.cycles > of_gather.cycles


def test_exchange_then_timeline_tiles_and_page_have_it(tmp_path: Path) -> None:
    num_replicas = 4
    x = torch.randn(2 * num_replicas * 128, 64)
    with_it, without = (training(num_replicas, exchanges) for exchanges in (True, False))
    for model in (with_it, without):
        model.compile(x)
    of_forward = [event for event in emulator.timeline(with_it) if event.action == "0F0"]
    assert "reduce" in {event.kind for event in of_forward}
    assert "reduce" not in {e.kind for e in emulator.timeline(without) if e.action == "0F0"}
    # Gathered values are held on the tiles.
    held = [emulator.tile_memory(model) for model in (with_it, without)]
    most, least = (tiles.largest_bytes(tiles.ipus[0]) for tiles in held)
    assert most > least
    page = emulator.page(with_it, tmp_path / "page.html").read_text()
    assert "all_gather" in page


def test_plan_for_another_number_of_replicas_then_says_why_not() -> None:
    x = torch.randn(2 * 2 * 128, 64)
    report = emulator.what_if(training(2), x, sweep={"replicas": [2, 4]})
    two, four = report.points
    assert two.throughput is not None and four.throughput is None
    assert "exchanges values between 2 replicas" in four.limit

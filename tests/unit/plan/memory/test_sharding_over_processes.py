"""Memory of tensors that are divided among the replicas of all processes."""

from __future__ import annotations

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.emulator.estimates import captured

KINDS = ("Weight", "Optimizer", "Accumulator")


class Model(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(super().forward(x), "mean")


def held_bytes(num_processes: int, replicas: int) -> dict[str, int]:
    """Returns the planned bytes of each variable on one replica."""
    model = Model(6, 5)
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(2)
    options.Distributed.configureProcessId(0, num_processes)
    for kind in KINDS:
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        location.minElementsForReplicatedTensorSharding(1)
        getattr(options.TensorLocations, f"set{kind}Location")(location)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, options, optimizer)
    _, inventory = captured(trainer, (torch.ones(2 * replicas, 6),), {})
    held = {name: inventory.held_bytes(info) for name, info in inventory.variables.items()}
    sums = {"sum of " + n: inventory.elements_of(inventory.variables[n], True) for n in held}
    return {**held, **sums}


@pytest.mark.feature("Replicated tensor sharding", fidelity="exact")
@pytest.mark.parametrize(("num_processes", "replicas"), [(2, 2), (4, 1)])
def test_memory_of_several_processes_then_each_replica_holds_its_part_of_all(
    num_processes: int, replicas: int
) -> None:
    found = held_bytes(num_processes, replicas)
    assert found == held_bytes(1, 4)
    assert found["weight"] == 4 * 8  # 30 elements over 4 replicas

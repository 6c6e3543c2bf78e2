"""R replicas with batches of b rows compute the same as one replica with batches of R * b rows."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.config import group_of_replica
from poptorch_emu.enums import CommGroupType


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        x = self.layers(x)
        return x, F.cross_entropy(x, labels)


def _trained(model: nn.Module, batch, replicas: int, accumulation: int, shards: bool):
    """Returns the outputs of two calls and the weights after them."""
    options = poptorch.Options().replicationFactor(replicas).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)
    if shards:
        location = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
        location.minElementsForReplicatedTensorSharding(0)
        for kind in ("Weight", "Optimizer", "Accumulator"):
            getattr(options.TensorLocations, f"set{kind}Location")(location)
    model = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options, optimizer)
    outputs = [training(*batch)[0] for _ in range(2)]
    training.destroy()
    return [*outputs, *model.state_dict().values()]


@given(
    replicas=st.sampled_from([2, 4]),
    rows=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    shards=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=5)
def test_replicas_when_they_share_a_batch_then_equal_one_replica_with_all_of_it(
    replicas: int, rows: int, accumulation: int, shards: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model = Model()
    count = replicas * rows * accumulation
    batch = (torch.randn(count, 5), torch.randint(3, (count,)))
    many = _trained(model, batch, replicas, accumulation, shards)
    one = _trained(model, batch, 1, accumulation, shards=False)
    for expected, value in zip(one, many, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@given(kind=st.sampled_from(CommGroupType), size=st.integers(1, 8), num_groups=st.integers(1, 8))
def test_groups_when_any_kind_then_divide_the_replicas_evenly(
    kind: CommGroupType, size: int, num_groups: int
) -> None:
    replicas = size * num_groups
    groups = group_of_replica(kind, size, replicas)
    expected = {CommGroupType.All: 1, CommGroupType.NoGrouping: replicas}.get(kind, num_groups)
    counts = [groups.count(group) for group in range(expected)]
    assert counts == [replicas // expected] * expected

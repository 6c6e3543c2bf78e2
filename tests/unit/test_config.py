"""The algebra of batches, checked by distributing the micro-batches one by one."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.utils.data import TensorDataset

import poptorch_emu as poptorch
from poptorch_emu.config import CompileConfig, batches_per_step, group_of_replica
from poptorch_emu.enums import CommGroupType

COUNTS = [
    counts for counts in product((1, 3), (1, 2), (1, 4, 6), (1, 2)) if counts[2] % counts[3] == 0
]


@pytest.mark.parametrize("counts", COUNTS)
def test_batches_of_a_step_then_each_group_of_replicas_takes_one_at_a_time(counts):
    iterations, accumulation, replicas, group_size = counts
    groups = group_of_replica(CommGroupType.Consecutive, group_size, replicas)
    taken = {
        (iteration, step, group)
        for iteration in range(iterations)
        for step in range(accumulation)
        for group in groups
    }
    assert batches_per_step(*counts) == len(taken)
    config = CompileConfig(True, *counts)
    assert config.num_input_groups == len(set(groups))
    assert config.batch_factor == len(taken)


def test_loader_and_compiler_then_agree():
    options = poptorch.Options().deviceIterations(3).replicationFactor(4)
    options.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    options.Training.gradientAccumulation(5)
    dataset = TensorDataset(torch.zeros(120))
    assert poptorch.DataLoader(options, dataset, 2).combinedBatchSize == 2 * (3 * 5 * (4 // 2))
    assert CompileConfig(True, 3, 5, 4, 2).batch_factor == 30

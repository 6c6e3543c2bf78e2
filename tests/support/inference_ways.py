"""Ways to run inference that change no bit of a result: blocks, locations and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

import poptorch_emu as poptorch

NUM_ITERATIONS = 8
Change = Callable[[poptorch.Options], object]


def unchanged(options: poptorch.Options) -> None:
    """Leaves the options unchanged."""


def sharded(options: poptorch.Options) -> None:
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))


def off_chip(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setWeightLocation(location.minElementsForOffChip(0))


def two_replicas(options: poptorch.Options) -> None:
    options.replicationFactor(2)
    options.deviceIterations(NUM_ITERATIONS // 2)


def through_blocks(steps: Iterable[Callable[[Any], Any]], cuts: tuple[int, ...], value: Any) -> Any:
    """Returns the result of applying `steps`; each index in `cuts` begins another IPU."""
    ipu = 0
    for index, step in enumerate(steps):
        ipu += index in cuts
        with poptorch.Block(ipu_id=ipu):
            value = step(value)
    return value


def plain_and_other(
    staged: Callable[[tuple[int, ...]], nn.Module],
    cuts: tuple[int, ...],
    change: Change,
    x: torch.Tensor,
) -> Iterator[tuple[poptorch.PoplarExecutor, torch.Tensor]]:
    """Yields an executor and its result: on one IPU, then with cuts and other options.

    Args:
        staged: function that creates the model, with blocks that begin before some of its steps.
        cuts: indices of the steps before which a block begins.
        change: function that changes the options.
        x: input of eight micro-batches.
    """
    for model_cuts, model_change in (((), unchanged), (cuts, change)):
        options = poptorch.Options()
        options.deviceIterations(NUM_ITERATIONS)
        options.autoRoundNumIPUs(True)
        model_change(options)
        inference = poptorch.inferenceModel(staged(model_cuts).eval(), options)
        yield inference, inference(x)

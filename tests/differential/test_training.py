"""Emulated training against the plain PyTorch loop with the same batches: the project's promise."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterator

import pytest
import torch
from support.helpers import Setting, assert_same_training
from support.models import FAMILIES

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Training equals plain PyTorch", fidelity="exact")


# Strategies with numbers of stages; accumulation factors with device iterations.
CUTS = list(itertools.product(["pipelined", "sharded"], [1, 2, 4]))
WINDOWS = list(itertools.product([1, 3, 8], [1, 4]))


def is_refused(cut: tuple[str, int], window: tuple[int, int]) -> bool:
    """Returns whether a pipeline has too few micro-batches to fill its stages."""
    strategy, stages = cut
    return strategy == "pipelined" and stages > 1 and window[0] < 2 * stages - 1


def cases_of(family: str, number: int) -> Iterator[tuple[str, str, int, int, int]]:
    """Yields each cut with two windows, for the first and smallest family with all.

    The windows do not depend on the operations, so one family is enough.
    """
    for place, cut in enumerate(CUTS):
        windows = WINDOWS
        if number > 0:
            allowed = [window for window in WINDOWS if not is_refused(cut, window)]
            windows = [allowed[(place + number + more) % len(allowed)] for more in (0, 3)]
        yield from ((family, *cut, *window) for window in dict.fromkeys(windows))


CASES = [case for number, family in enumerate(FAMILIES) for case in cases_of(family, number)]


@pytest.mark.parametrize(
    ("family", "strategy", "stages", "accumulation", "iterations"),
    CASES,
    ids=[f"{case[0]}-{case[1]}-stages{case[2]}-ga{case[3]}-di{case[4]}" for case in CASES],
)
def test_training_when_20_updates_then_equals_plain_pytorch(
    family: str, strategy: str, stages: int, accumulation: int, iterations: int
) -> None:
    setting = Setting(strategy, accumulation, iterations)
    model = FAMILIES[family].make(stages)
    if is_refused((strategy, stages), (accumulation, iterations)):
        with pytest.raises(poptorch.Error, match="gradientAccumulation must be greater"):
            assert_same_training(model, FAMILIES[family].batch, setting)
    else:
        assert_same_training(model, FAMILIES[family].batch, setting)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_training_when_optimiser_is_chosen_then_equals_torch_optim(name: str) -> None:
    assert_same_training(
        FAMILIES["mlp"].make(1),
        FAMILIES["mlp"].batch,
        Setting(accumulation=2),
        make_optimizer=lambda parameters, module: getattr(module, name)(parameters, lr=0.01),
        # Adam divides by the root of a tiny second moment, which magnifies the last bit.
        rtol=1e-4,
    )


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("family", ["mlp", "mnist", "embedding"])
def test_training_when_replicated_then_equals_the_global_batch(family: str, replicas: int) -> None:
    setting = Setting("pipelined", accumulation=2, iterations=2, replicas=replicas)
    assert_same_training(FAMILIES[family].make(1), FAMILIES[family].batch, setting)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_when_workers_differ_then_bits_are_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FAMILIES[family].make(4)
    setting = Setting("pipelined", accumulation=8, iterations=2)
    batches = [FAMILIES[family].batch(2 * setting.num_micro_batches) for _ in range(3)]
    results = []
    for workers in (1, 2, 4):
        monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
        trained = copy.deepcopy(model)
        optimizer = poptorch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        training = poptorch.trainingModel(trained, setting.options(), optimizer)
        losses = [training(*batch)[1] for batch in batches]
        training.destroy()
        results.append([*losses, *trained.state_dict().values()])
    assert os.environ["POPTORCH_EMU_WORKERS"] == "4"
    for other in results[1:]:
        for expected, value in zip(results[0], other, strict=True):
            assert torch.equal(expected, value)

"""`emulator.compare` with other options and other optimisers."""

from __future__ import annotations

import pytest
import torch
from support.numbers_models import Language, batch
from support.numbers_runs import (
    HARMLESS_OPTIONS,
    ROWS,
    adam,
    options,
    sgd,
    training,
)

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.numbers.run import Direction
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return emulator.record(training(), tmp_path_factory.mktemp("runs") / "golden", *batch(ROWS))


def test_options_when_stages_are_others_then_all_bits_are_equal():
    one, two = options(8), options(8)
    two.setExecutionStrategy(poptorch.ShardedExecution())
    model = Language(num_ipus=2)
    executor = poptorch.trainingModel(model, one, adam(model.parameters()))
    assert emulator.compare(executor, *batch(16), against=two).verdict is Verdict.EQUAL


def test_options_when_replicas_take_over_micro_batches_then_sums_are_reordered():
    # Each replica has a running mean of its own, which sees other rows.
    model = training("buffer left alone", options(4))
    report = emulator.compare(model, *batch(8), against=options(2, 2))
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


@pytest.mark.parametrize("change", HARMLESS_OPTIONS)
def test_options_when_their_change_is_harmless_then_it_is_not_called_different(change):
    changed, num_ipus, replicas = HARMLESS_OPTIONS[change]
    model = Language(num_ipus=num_ipus)
    executor = poptorch.trainingModel(model, options(4, replicas), adam(model.parameters()))
    others = changed(options(4, replicas))
    report = emulator.compare(executor, *batch(8 * replicas), against=others)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_stage_split_when_it_is_another_then_it_is_not_called_different(golden):
    model = Language(num_ipus=2)
    opts = options().setExecutionStrategy(poptorch.ShardedExecution())
    executor = poptorch.trainingModel(model, opts, adam(model.parameters()))
    report = emulator.compare(executor, *batch(ROWS), against=golden)
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)


def test_options_when_gradients_are_added_up_then_the_update_is_different():
    summed = options(4)
    summed.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    report = emulator.compare(training(opts=options(4), optimizer=sgd), *batch(8), against=summed)
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.direction is Direction.UPDATE
    assert "what the optimizer makes" in report.first.reason


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [(adam, {"eps": 1e-4}), (adam, {"weight_decay": 0.1}), (sgd, {"loss_scaling": 8.0})],
    ids=["eps", "weight decay", "loss scaling"],
)  # fmt: skip
def test_optimizer_when_a_setting_is_another_then_the_update_or_the_gradient_says_so(
    optimizer, settings
):
    report = emulator.compare(
        training(optimizer=optimizer, **settings),
        *batch(ROWS),
        against=training(optimizer=optimizer),
    )
    assert report.verdict is Verdict.DIFFERENT
    expected = Direction.BACKWARD if "loss_scaling" in settings else Direction.UPDATE
    assert report.first.value.direction is expected


def test_accumulators_when_they_are_half_then_it_is_less_precision_from_the_update_on():
    report = emulator.compare(
        training(opts=options(8), accum_type=torch.float16),
        *batch(8 * ROWS),
        against=training(opts=options(8)),
    )
    assert report.verdict is Verdict.LESS_PRECISION
    assert report.first.value.direction is Direction.UPDATE

"""The emulator's values for a compiled model before it runs."""

from __future__ import annotations

import pytest
import torch
from support.emulator_values import BATCH, make_training, training

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.schedule.csv_text import from_csv


class TwoStages(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.first(x)
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x)
            return x, poptorch.identity_loss(x, "sum")


def options_for(strategy=None, accumulation: int = 4) -> poptorch.Options:
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)
    if strategy is not None:
        options.setExecutionStrategy(strategy)
    return options


def compiled(options: poptorch.Options, rows: int = 4):
    model = TwoStages()
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=1))
    training.compile(torch.randn(rows, 3))
    return training


def test_schedule_when_only_compiled_then_shows_fill_main_and_flush() -> None:
    plan = emulator.schedule(compiled(options_for()))
    text = [line.split() for line in str(plan).splitlines()]
    assert text[1] == ["fill", "fill", "main", "main", "flush", "flush", "update"]
    assert text[2] == ["IPU", "0", "0F0", "0F1", "0F2|0B0", "0F3|0B1", "0B2", "0B3", "0U0"]
    assert text[3] == ["IPU", "1", "1F0|1B0", "1F1|1B1", "1F2|1B2", "1F3|1B3", "1U0"]
    assert str(plan).splitlines()[5:] == [
        "stage 0: IPU 0, blocks first, stashes 3",
        "stage 1: IPU 1, blocks second, stashes 1",
    ]


def test_schedule_when_written_as_csv_then_parses_back() -> None:
    plan = emulator.schedule(compiled(options_for()))
    assert from_csv(plan.to_csv()) == plan.grid


@pytest.mark.parametrize(
    ("order", "second_row"),
    [
        ("grouped", ",1F0|1B0,1F1|1B1,1F2|1B2,1F3|1B3,,1U0"),
        ("interleaved", ",1F0|1B0,,1F1|1B1,,1F2|1B2,,1F3|1B3,,,1U0"),
        ("sequential", ",1F0|1B0,,,1F1|1B1,,,1F2|1B2,,,1F3|1B3,,1U0"),
    ],
)
def test_set_schedule_when_an_order_is_chosen_then_the_pipeline_has_it(
    order: str, second_row: str
) -> None:
    options = options_for()
    emulator.set_schedule(options, order)
    plan = emulator.schedule(compiled(options))
    assert plan.to_csv().splitlines()[1] == second_row


def test_set_schedule_when_order_is_unknown_then_names_the_known_ones() -> None:
    with pytest.raises(poptorch.Error, match="'zigzag'.*grouped.*interleaved.*sequential"):
        emulator.set_schedule(options_for(), "zigzag")


def test_set_schedule_when_strategy_is_no_pipeline_then_raises() -> None:
    with pytest.raises(poptorch.Error, match="strategy is ShardedExecution"):
        emulator.set_schedule(options_for(poptorch.ShardedExecution()), "grouped")


def test_set_schedule_when_options_are_frozen_then_raises() -> None:
    options = options_for()
    compiled(options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        emulator.set_schedule(options, "sequential")


@pytest.mark.parametrize("show", [emulator.schedule, emulator.memory])
def test_plans_when_not_compiled_then_raise(show) -> None:
    model = TwoStages()
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        show(poptorch.inferenceModel(model))


PLANS = {
    "compare_schedules": {},
    "estimate": {},
    "lab": {"sweep": {"accumulation": [8, 16]}},
    "memory": {},
    "page": {},
    "plan_split": {"num_ipus": 4},
    "report": {},
    "schedule": {},
    "summary": {},
    "tile_memory": {},
    "timeline": {},
    "trace": {},
    "what_if": {"sweep": {"accumulation": [8, 16]}},
}


@pytest.mark.parametrize("name", PLANS)
def test_plan_of_a_model_and_its_inputs_then_is_that_of_the_compiled_model(name, tmp_path) -> None:
    options = {"system": "mk2-pod4", "io": emulator.HostWork(items_per_second=1e4), **PLANS[name]}
    if name in ("lab", "page", "trace"):
        options["path"] = tmp_path / name
    if name == "report":
        options["directory"] = tmp_path
    plan = getattr(emulator, name)
    assert str(plan(make_training(), BATCH, **options)) == str(plan(training(), **options))
    if name in ("memory", "schedule", "tile_memory"):
        assert str(plan(make_training(), BATCH)) == str(plan(training()))

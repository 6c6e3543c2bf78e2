"""`emulator.record`: the contents of a file, and later comparisons with it, also elsewhere."""

from __future__ import annotations

import copy

import pytest
import torch
from support.numbers_models import Language, batch
from support.numbers_runs import (
    ROWS,
    adam,
    options,
    sgd,
    training,
)

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.errors import Error
from poptorch_emu.numbers.run import Direction
from poptorch_emu.numbers.run_file import RunWriter, opened
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")


def test_all_reduce_when_another_machine_left_it_out_then_the_update_is_different(tmp_path):
    data, rate = batch(2 * ROWS), 0.1
    model = training("buffer left alone", options(1, 2), sgd)
    path = emulator.record(model, tmp_path / "right", *data)
    with opened(path) as run, RunWriter(tmp_path / "wrong") as writer:
        numbers = {value.name: number for number, value in enumerate(run.values) if value.name}
        for number, value in enumerate(run.values):
            writer.declare(value)
            weight = value.name.removeprefix("update of ")
            for position in run.positions:
                tensor = run.read(number, position)
                if tensor is not None and weight != value.name:
                    # Each replica steps by its own gradient alone.
                    before = run.read(numbers[weight], (0, 0))
                    own = run.read(numbers[f"gradient of {weight}"], (0, 0))
                    tensor = before - rate * own
                if tensor is not None:
                    writer.add(number, position, tensor)
    assert emulator.compare(model, *data, against=path).verdict is Verdict.EQUAL
    report = emulator.compare(model, *data, against=tmp_path / "wrong")
    assert report.verdict is Verdict.DIFFERENT
    assert report.first.value.direction is Direction.UPDATE
    assert "The other run's weight is not what the optimizer makes" in report.first.reason


def test_record_when_the_model_goes_on_then_the_file_stays_what_it_was(tmp_path):
    model, data = training(), batch(ROWS)
    path = emulator.record(model, tmp_path / "run", *data)
    assert emulator.compare(training(), *data, against=path).verdict is Verdict.EQUAL
    model(*data)
    report = emulator.compare(model, *data, against=path)
    assert report.first.value.direction is Direction.GIVEN


class Failing(torch.nn.Module):
    """A model that fails on the host after computing most of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.host = poptorch.CPU(self.check, "check")

    def check(self, x):
        if x.sum() > 0:
            raise ValueError("found no way")
        return x

    def forward(self, x):
        return self.host(torch.tanh(x)) + 1


def test_record_when_the_run_fails_then_what_was_there_stays(tmp_path):
    path = emulator.record(training(), tmp_path / "run", *batch(ROWS))
    before = path.read_bytes()
    with pytest.raises(Error, match="check"):
        emulator.record(poptorch.inferenceModel(Failing()), path, torch.ones(3))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def test_record_then_it_can_be_read_with_other_weights_elsewhere(tmp_path):
    data, twin = batch(ROWS), copy.deepcopy(Language())
    path = emulator.record(training(), tmp_path / "run", *data)
    executor = poptorch.trainingModel(twin, options(), adam(twin.parameters()))
    assert emulator.compare(executor, *data, against=str(path)).verdict is Verdict.EQUAL

"""The settings of a report: named by their setters, and changed only if the user set them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.config import CompileConfig
from poptorch_emu.options.freeze import freeze
from poptorch_emu.report.page.view_options import SETTERS, option_rows


def changed(options: poptorch.Options, *, is_training: bool = True) -> dict[str, str | None]:
    """Returns the settings that are not the default, by name."""
    if options.defaultOutputMode():
        mode = poptorch.OutputMode.Final if is_training else poptorch.OutputMode.All
        options.outputMode(mode)
    rows = option_rows(freeze(options, is_training=is_training))
    return {str(name): value for name, value, default in rows if default not in (None, value)}


@pytest.mark.parametrize("is_training", [True, False])
def test_options_when_nothing_is_set_then_nothing_differs(is_training: bool) -> None:
    assert changed(poptorch.Options(), is_training=is_training) == {}


def test_options_when_some_are_set_then_they_have_the_names_of_their_setters() -> None:
    options = poptorch.Options().deviceIterations(3).replicationFactor(2).modelName("encoder")
    options.Training.gradientAccumulation(8)
    options.Precision.enableStochasticRounding(True)
    options.outputMode(poptorch.OutputMode.EveryN, 4)
    options.setAvailableMemoryProportion({"IPU0": 0.3})
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)
    options._Popart.set("autoRecomputation", 1)
    emulator.set_schedule(options, "interleaved")
    assert changed(options) == {
        "_Popart.set: autoRecomputation": "STANDARD",
        "deviceIterations": "3",
        "emulator.set_schedule: order": "INTERLEAVED",
        "modelName": "encoder",
        "outputMode: output_mode": "EveryN",
        "outputMode: output_return_period": "4",
        "Precision.enableStochasticRounding": "True",
        "replicationFactor": "2",
        "setAvailableMemoryProportion": "0, 0.3",
        "TensorLocations.setOptimizerLocation: is_on_chip": "False",
        "Training.gradientAccumulation": "8",
    }


def test_strategies_when_stages_are_named_then_their_blocks_are_told() -> None:
    strategy = poptorch.ShardedExecution(poptorch.Stage("first", "second"), poptorch.Stage("last"))
    told = changed(poptorch.Options().setExecutionStrategy(strategy))
    assert told["setExecutionStrategy: kind"] == "SHARDED"
    assert told["setExecutionStrategy: stages"] == "first, second, last"


def test_setters_when_named_then_each_is_one_of_options_and_each_field_is_there() -> None:
    def paths(kind: Any, prefix: str = "") -> set[str]:
        default = kind(is_training=True) if kind is CompileConfig else kind()
        found = set()
        for field in fields(kind):
            item = getattr(default, field.name)
            found.add(prefix + field.name)
            if is_dataclass(item):
                found |= paths(type(item), f"{prefix}{field.name}.")
        return found

    assert SETTERS.keys() <= paths(CompileConfig)
    elsewhere = {"replicaGrouping"}  # A method of models instead of options.
    for text in SETTERS.values():
        for name in text.partition(":")[0].split(", "):
            owner: Any = poptorch if name.startswith("emulator.") else poptorch.Options()
            for part in name.split("."):
                assert name in elsewhere or hasattr(owner, part), name
                owner = getattr(owner, part, None)

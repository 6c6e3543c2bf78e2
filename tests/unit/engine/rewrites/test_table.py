"""The table of rewrites: its order, its completeness, and the programs of each rewrite."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import replace

import pytest

from poptorch_emu.config import CompileConfig
from poptorch_emu.engine import rewrites
from poptorch_emu.engine.rewrites.table import REWRITES, When

IDS = [each.apply.__name__ for each in REWRITES]


@pytest.mark.parametrize("place", range(len(REWRITES)), ids=IDS)
def test_rewrite_when_it_comes_after_others_then_these_stand_before_it(place) -> None:
    before = {each.apply for each in REWRITES[:place]}
    assert before.issuperset(REWRITES[place].after)
    assert bool(REWRITES[place].after) == bool(REWRITES[place].why)


@pytest.mark.parametrize("each", REWRITES, ids=IDS)
def test_rewrite_when_it_comes_after_others_then_these_run_wherever_it_does(each) -> None:
    by_function = {other.apply: other.when for other in REWRITES}
    for other in each.after:
        assert by_function[other] in (each.when, When.BOTH, When.ALWAYS) or (
            each.when is When.ALWAYS  # A rewrite that always runs may stand alone.
        )


def test_functions_that_rewrite_then_each_is_in_the_table_once() -> None:
    found = set()
    for info in pkgutil.iter_modules(rewrites.__path__):
        module = importlib.import_module(f"{rewrites.__name__}.{info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            is_rewrite = signature.return_annotation == "int" and [
                parameter.annotation for parameter in signature.parameters.values()
            ] == ["EngineGraph"]
            if is_rewrite and function.__module__ == module.__name__ and name != "rewrite":
                if not name.startswith("_"):
                    found.add(function)
    assert found == {each.apply for each in REWRITES}
    assert len(REWRITES) == len(found)


def test_program_whose_numbers_are_checked_then_has_no_rewrite_but_those_that_always_run() -> None:
    for is_training in (True, False):
        config = CompileConfig(is_training=is_training)
        checked = replace(config, checks_floating_point=True)
        assert When.BOTH.holds(config)
        assert When.TRAINING.holds(config) is is_training
        assert When.INFERENCE.holds(config) is not is_training
        assert [each for each in When if each.holds(checked)] == [When.ALWAYS]

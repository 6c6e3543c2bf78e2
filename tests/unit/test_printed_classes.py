"""Values of public classes tell something when they are printed, not only their address."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator, optim, options, report

# Base classes, and classes whose values no program receives.
WITHOUT_VALUES = {
    "Choice", "Freezable", "ICustomArgParser", "PrintedReport", "ProfileWriter", "ProgressBar",
}  # fmt: skip


def public_classes() -> Iterator[type]:
    """Yields the classes of public names, and those of the values that reports return."""
    for module in (poptorch, optim, emulator, emulator.schedules, emulator.course):
        yield from (each for each in map(vars(module).get, module.__all__) if inspect.isclass(each))
    for package in (options, report):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            own = (each for each in vars(module).values() if inspect.isclass(each))
            yield from (c for c in own if c.__module__ == module.__name__ and c.__name__[0] != "_")


CLASSES = sorted({*public_classes()}, key=lambda each: each.__qualname__)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_public_class_then_its_values_do_not_print_as_an_address(kind: type) -> None:
    prints_address = kind.__repr__ is object.__repr__
    assert prints_address == (kind.__name__ in WITHOUT_VALUES)


def test_contexts_and_host_functions_then_print_how_they_were_made() -> None:
    values = {
        "NameScope('head')": poptorch.NameScope("head"),
        "Attribute(kind={'layer': 'first'})": poptorch.Attribute(kind={"layer": "first"}),
        "CPU(<built-in function abs>, 'size')": poptorch.CPU(abs, "size"),
        "MultiConv()": poptorch.MultiConv(),
        "<MultiConv with partialsTypes>": poptorch.MultiConv().partialsTypes([torch.half]),
        "<VariableAttributes: lr>": optim.VariableAttributes(["lr"], ["lr", "momentum"]),
    }
    assert {repr(value) for value in values.values()} == set(values)

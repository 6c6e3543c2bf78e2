"""Modules that most programs do not need are loaded at their first use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.forked_programs import PYTORCH, run_forked

from poptorch_emu.module_loading import LateModule

PACKAGE = Path(__file__).parents[2] / "poptorch_emu"

# A program that only trains, and then asks for a report.
PROGRAM = """
import os, sys
for name in [name for name in os.environ if name.startswith("POPTORCH_EMU_")]:
    del os.environ[name]
import torch
import poptorch_emu as poptorch

def loaded():
    return {name for name in sys.modules if name.split(".")[0] in ("poptorch_emu", "sqlite3")}

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def forward(self, x):
        return poptorch.identity_loss(self.layer(x), "mean")
model = Whole()
options = poptorch.Options()
training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
training(torch.ones(4, 3))
names = " ".join(loaded())
assert "emulator" not in names and "sqlite3" not in names, names
for part in ("report.page", "report.profile", "report.tile_report", "plan.time", "export"):
    assert f"poptorch_emu.{part}" not in names, part
assert "emulator" in dir(poptorch) and "Options" in dir(poptorch)
assert poptorch.emulator is sys.modules["poptorch_emu.emulator"]
assert "poptorch_emu.report.page" in loaded()
"""


def test_program_when_it_asks_for_no_report_then_loads_nothing_that_makes_them() -> None:
    done = run_forked(["-c", PROGRAM], loaded=PYTORCH)
    assert done.returncode == 0, done.stderr


def is_name(node: ast.expr, name: str) -> bool:
    """Returns whether an expression is a name."""
    return isinstance(node, ast.Name) and node.id == name


def late_modules(tree: ast.Module) -> list[str]:
    """Returns the names that a file gives to `LateModule`."""
    return [
        ast.literal_eval(call.args[0])
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and is_name(call.func, "LateModule")
    ]


def checked_modules(tree: ast.Module) -> set[str]:
    """Returns the names of all modules that a file imports under `TYPE_CHECKING`."""
    found = set()
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If) and is_name(branch.test, "TYPE_CHECKING"):
            for node in branch.body:
                if isinstance(node, ast.ImportFrom):
                    found.update(f"{node.module}.{alias.name}" for alias in node.names)
                elif isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
    return found


def test_late_modules_are_those_that_type_checkers_see() -> None:
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    late = {path: late_modules(tree) for path, tree in trees.items()}
    assert sum(map(len, late.values())) > 10
    for path, names in late.items():
        assert set(names) <= checked_modules(trees[path]), path


def test_late_module_when_a_name_is_missing_then_says_of_which_module() -> None:
    with pytest.raises(AttributeError, match="module 'colorsys' has no attribute 'nothing'"):
        _ = LateModule("colorsys").nothing

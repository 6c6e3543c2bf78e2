"""The examples in docstrings run, and print what they say."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest
import torch

import poptorch_emu
from poptorch_emu import emulator

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "poptorch_emu").rglob("*.py"))
# What each example may use, as docs/api/index.md says.
GIVEN = {"torch": torch, "poptorch": poptorch_emu, "emulator": emulator}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def failures_of(docstring: str, name: str) -> str:
    """Returns what differs, in words; "" if nothing does."""
    found: list[str] = []
    test = doctest.DocTestParser().get_doctest(docstring, dict(GIVEN), name, name, 0)
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=found.append)
    return "".join(found)


def docstrings_of(path: Path) -> list[tuple[str, str]]:
    """Returns the names of what has a docstring in a file, with it."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    found = [(getattr(node, "name", module_of(path)), ast.get_docstring(node)) for node in nodes]
    return [(name, text) for name, text in found if text]


EXAMPLES = [
    pytest.param(text, f"{module_of(path)}.{name}", id=f"{module_of(path)}.{name}")
    for path in FILES
    for name, text in docstrings_of(path)
    if ">>>" in text
]


@pytest.mark.parametrize(("docstring", "name"), EXAMPLES)
def test_example_when_it_runs_then_it_prints_what_it_says(
    docstring: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    importlib.import_module(name.rpartition(".")[0])
    assert failures_of(docstring, name) == ""


def test_examples_then_the_ways_in_have_one() -> None:
    """The functions and classes that a first program meets."""
    wanted = {"trainingModel", "inferenceModel", "DataLoader", "Block", "for_loop", "SGD"}
    assert wanted <= {example.values[1].rpartition(".")[2] for example in EXAMPLES}


def test_code_in_docstrings_then_it_is_an_example_that_runs() -> None:
    fenced = [
        f"{module_of(path)}.{name}"
        for path in FILES
        for name, text in docstrings_of(path)
        if "```" in text
    ]
    assert fenced == []


def test_example_when_it_is_wrong_then_it_is_found() -> None:
    assert "42" in failures_of("Says it.\n\n>>> 6 * 7\n41\n", "wrong")
    assert failures_of("Says it.\n\n>>> 6 * 7\n42\n", "right") == ""

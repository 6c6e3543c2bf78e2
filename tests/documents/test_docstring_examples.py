"""The examples in docstrings run, and print the output that is written below them."""

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
# Names that each example may use, as docs/api/index.md says.
GIVEN = {"torch": torch, "poptorch": poptorch_emu, "emulator": emulator}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def failures_of(docstring: str, name: str) -> str:
    """Returns a description of the differences, or "" if there are none."""
    found: list[str] = []
    test = doctest.DocTestParser().get_doctest(docstring, dict(GIVEN), name, name, 0)
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=found.append)
    return "".join(found)


def docstrings_with(mark: str) -> list[tuple[str, str]]:
    """Returns the docstrings that contain `mark`, each after the name of its owner."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if mark in text else ():
            docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
            if docstring and mark in docstring:
                module = module_of(path)
                found.append((f"{module}.{getattr(node, 'name', module)}", docstring))
    return found


EXAMPLES = [pytest.param(text, name, id=name) for name, text in docstrings_with(">>>")]


@pytest.mark.parametrize(("docstring", "name"), EXAMPLES)
def test_example_when_it_runs_then_it_prints_what_it_says(
    docstring: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    importlib.import_module(name.rpartition(".")[0])
    assert failures_of(docstring, name) == ""


def test_examples_then_the_ways_in_have_one() -> None:
    """The functions and classes that a first program uses have an example."""
    wanted = {"trainingModel", "inferenceModel", "DataLoader", "Block", "for_loop", "SGD"}
    assert wanted <= {example.values[1].rpartition(".")[2] for example in EXAMPLES}


def test_code_in_docstrings_then_it_is_an_example_that_runs() -> None:
    assert [name for name, _ in docstrings_with("```")] == []


def test_example_when_it_is_wrong_then_it_is_found() -> None:
    assert "42" in failures_of("Says it.\n\n>>> 6 * 7\n41\n", "wrong")
    assert failures_of("Says it.\n\n>>> 6 * 7\n42\n", "right") == ""

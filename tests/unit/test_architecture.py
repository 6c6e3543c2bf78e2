"""Imports only go down, and nothing imports in a circle; in C++ likewise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "poptorch_emu"

FLOORS = {
    "errors": 0, "environment": 0, "enums": 0, "config": 0, "log": 0, "structure": 0,
    "text_table": 0, "version": 0,
    "ir": 1, "update": 1,
    "machine": 2,
    "trace": 3,
    "passes": 4,
    "schedule": 5,
    "segments": 6,
    "plan": 7,
    "compile": 8,
    "runtime": 9,
    "report": 10,
}  # fmt: skip
TOP = 11
CPP_FLOORS = {"common": 0, "program": 1, "numerics": 2, "ops": 3, "runtime": 3, "": 4}
# `stored/key` lists autograd's graph, `stored/executable_file` turns programs into bytes,
# `data/slot_collate` stacks samples.
ENGINE_USERS = {
    "compile/lower",
    "compile/instruction",
    "compile/executable",
    "compile/stored/executable_file",
    "compile/stored/key",
    "runtime/session",
    "data/slot_collate",
    "runtime/stream",
    "testing",
    "__init__",
}


def floor_of(module: str) -> int:
    """Returns the floor of `poptorch_emu.<module>`."""
    return FLOORS.get(module.split(".")[0], TOP)


def imports_of(path: Path) -> set[str]:
    """Returns the names below `poptorch_emu.` that a file imports, as `folder.module` paths."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "poptorch_emu":
                found.update(alias.name for alias in node.names)
            elif node.module.startswith("poptorch_emu."):
                inner = node.module.removeprefix("poptorch_emu.")
                for alias in node.names:
                    is_module = (PACKAGE / inner.replace(".", "/") / f"{alias.name}.py").exists()
                    found.add(f"{inner}.{alias.name}" if is_module else inner)
    return found


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return (
        str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    )


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_module_when_read_then_imports_only_its_floor_or_lower(path: Path) -> None:
    own = floor_of(name_of(path)) if path.name != "__init__.py" or path.parent != PACKAGE else TOP
    climbs = [name for name in imports_of(path) if name != "_C" and floor_of(name) > own]
    assert not climbs, f"{name_of(path)} is on floor {own} and imports {climbs}"


def test_modules_when_followed_then_there_is_no_circle() -> None:
    graph = {name_of(path): imports_of(path) for path in files()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name in done:
            return
        for other in graph.get(name, ()):
            visit(other, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_engine_when_imported_then_by_few(path: Path) -> None:
    if "_C" in imports_of(path):
        assert str(path.relative_to(PACKAGE).with_suffix("")) in ENGINE_USERS


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_functions_when_read_then_import_nothing_inside(path: Path) -> None:
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [n for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))]
            assert not inner, f"{name_of(path)}.{function.name} imports inside itself"


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cpp")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_cpp_when_read_then_includes_only_its_floor_or_lower(path: Path) -> None:
    folder = path.relative_to(ROOT / "csrc").parts[0] if path.parent.name != "csrc" else ""
    for include in re.findall(r'#include "([^"]+)"', path.read_text()):
        assert CPP_FLOORS[include.rpartition("/")[0]] <= CPP_FLOORS[folder], include
    is_bindings = path.stem.startswith("bindings")
    assert is_bindings or not re.search(
        r"#include <(Python\.h|torch/extension\.h)>", path.read_text()
    )


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_file_when_counted_then_is_not_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400

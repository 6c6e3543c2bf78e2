"""The single list of packages for the tests: pyproject.toml, read by tools/requirements.py."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "tutorials", "benchmarks")


def printed(*extras: str) -> list[str]:
    command = [sys.executable, str(ROOT / "tools" / "requirements.py"), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def imported_modules() -> Iterator[str]:
    """Yields the first name of every module that an import statement asks for."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from (alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    yield str(node.module).split(".")[0]


def test_requirements_of_the_tests_then_cover_every_import():
    # Other packages are optional: without them, the tests of a tutorial or a benchmark are skipped.
    listed = {re.split("[=<>]", name)[0] for name in printed("test", "notebook", "bench", "zoo")}
    listed = {name.removesuffix("-cpu") for name in listed}  # Modules have no such suffix.
    distributions = packages_distributions()
    ours = {path.stem for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    ours |= {"poptorch", "poptorch_emu"}
    missing = {
        module
        for module in set(imported_modules()) - ours - sys.stdlib_module_names
        if listed.isdisjoint([module, *distributions.get(module, ())])
    }
    assert not missing


def test_requirements_without_an_extra_then_are_those_of_the_package():
    assert printed() == ["torch>=2.13,<2.16", "numpy", "tqdm"]
    assert printed("check") == [*printed(), "ruff", "mypy", "clang-format", "vermin"]


def test_makefile_then_names_no_package():
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert len(lines) == 2
    assert all(line.endswith((" -r $@.txt", " -e .")) for line in lines)

"""Python programs that a program with our names starts find the names, too."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from poptorch_emu.names import aliases

pytestmark = pytest.mark.feature("poptorch_emu.emulator.install", fidelity="exact")

FOLDER = Path(aliases.__file__).with_name("started")


def sitecustomize() -> ModuleType:
    """Imports the module of started programs under another name, so that it installs nothing."""
    spec = importlib.util.spec_from_file_location("started_names", FOLDER / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(code: str, *places: object) -> str:
    """Returns the output of a program that searches modules in `places` first."""
    paths = os.pathsep.join([str(FOLDER), *map(str, places), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_name_when_a_started_program_imports_it_then_is_ours() -> None:
    text = started("import pva, poptorch.optim, sys; print(poptorch.Options().device_iterations)")
    assert text == "1\n"


def test_started_program_without_the_names_then_loads_nothing_and_runs_what_is_hidden(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("hidden = 3\n")
    code = "import sys, sitecustomize; print('torch' in sys.modules, sitecustomize.hidden)"
    assert started(code, tmp_path) == "False 3\n"


def test_names_that_started_programs_know_then_are_those_of_the_table() -> None:
    known = sitecustomize()
    roots = {name.partition(".")[0] for name in aliases.MODULES}
    assert known.OWN_ROOTS == roots - {"tensorflow", "keras"}
    assert set(aliases.MODULES) >= known.ADDED


@pytest.mark.parametrize("before", [None, "/elsewhere", f"/a{os.pathsep}/b"])
def test_names_when_installed_twice_then_the_folder_is_in_front_once(before, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    aliases._tell_started_programs()
    aliases._tell_started_programs()
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [
        str(FOLDER),
        *([] if before is None else before.split(os.pathsep)),
    ]

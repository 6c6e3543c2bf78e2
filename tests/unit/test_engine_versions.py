"""Choice of an engine for the version of PyTorch, and the error if no engine fits."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.forked_programs import PYTORCH, run_forked

import poptorch_emu
from poptorch_emu import _C

FOLDER = Path(poptorch_emu.__file__).parent
SUFFIX = EXTENSION_SUFFIXES[0]


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    """Returns the module that finds the engine, and that the engine replaces in the package."""
    spec = importlib.util.spec_from_file_location("loader_of_engines", FOLDER / "_C.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The module replaces its own entry by the engine.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert sys.modules.pop(spec.name) is _C
    return module


def test_engine_then_is_that_of_this_pytorch() -> None:
    major, minor = torch.__version__.split(".")[:2]
    assert Path(_C.__file__).name == f"_C_{major}_{minor}{SUFFIX}"
    assert _C.Program.__module__ == "poptorch_emu._C"


def test_engines_in_a_folder_then_are_those_of_this_python(loader, tmp_path) -> None:
    for name in (f"_C_2_13{SUFFIX}", f"_C_2_9{SUFFIX}", "_C_2_14.cpython-39-x86_64-linux-gnu.so"):
        (tmp_path / name).touch()
    assert loader.built_versions(tmp_path) == [(2, 9), (2, 13)]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "has not been built, but PyTorch 2.13.0+cpu is installed"),
        (["_C_2_14", "_C_2_15"], "was built with PyTorch 2.14 and 2.15, but PyTorch 2.13.0+cpu is"),
    ],
    ids=["none", "others"],
)
def test_engine_when_none_fits_then_the_versions_and_the_command(
    loader, names, found, tmp_path
) -> None:
    for name in names:
        (tmp_path / f"{name}{SUFFIX}").touch()
    with pytest.raises(ImportError) as caught:
        loader.load("2.13.0+cpu", tmp_path)
    assert found in str(caught.value)
    assert "pip install" in str(caught.value) and "--no-binary poptorch_emu" in str(caught.value)


def test_engine_when_pytorch_was_exchanged_then_what_it_was_built_with(tmp_path) -> None:
    # This engine cannot be loaded, like an engine that was built with another PyTorch.
    package = tmp_path / "poptorch_emu"
    package.mkdir()
    for path in FOLDER.glob("*.py"):
        (package / path.name).symlink_to(path)
    for path in FOLDER.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            (package / path.name).symlink_to(path)
    major, minor = torch.__version__.split(".")[:2]
    (package / f"_C_{major}_{minor}{SUFFIX}").write_bytes(b"no library")
    variables = {"PYTHONPATH": str(tmp_path)}
    done = run_forked(["-c", "import poptorch_emu"], variables, tmp_path, loaded=PYTORCH)
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert f"built with PyTorch {major}.{minor} does not fit PyTorch {torch.__version__}" in last
    assert "pip install" in last


def test_engine_of_a_version_that_was_not_tried_then_a_warning(loader, tmp_path, caplog) -> None:
    (tmp_path / f"_C_2_99{SUFFIX}").touch()
    with pytest.raises(ImportError):
        loader.load("2.99.0", tmp_path)
    assert "not tested with PyTorch 2.99.0" in caplog.text

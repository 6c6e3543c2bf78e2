"""Libraries of operators that cannot be loaded here, after `emulator.install()`."""

from __future__ import annotations

import ctypes
import importlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.forked_programs import run_forked

from poptorch_emu import empty_library
from poptorch_emu.companions import cppimport, examples_utils
from poptorch_emu.companions.cppimport import importer
from poptorch_emu.names import foreign_libraries

pytestmark = pytest.mark.feature("libraries of custom operators", fidelity="accepted")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
LOADERS: dict[str, Callable] = {
    "LoadLibrary": ctypes.cdll.LoadLibrary,
    "CDLL": ctypes.CDLL,
    "a path": lambda path: ctypes.CDLL(Path(path)),
    "torch": torch.ops.load_library,
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # `monkeypatch` restores the method after the test.
    monkeypatch.setattr(ctypes.CDLL, "__init__", foreign_libraries._load)
    foreign_libraries.install()


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(
    "name", ["custom_ops.so", "libcustom_cube_op.so", "leaky_relu_custom_op.so", "remap_ce.so"]
)
def test_library_when_missing_then_one_warning_for_each_path(load, name, tmp_path, caplog) -> None:
    for _ in range(3):
        load(str(tmp_path / name))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert name in record.getMessage() and "cannot open shared object" in record.getMessage()


def test_library_that_stands_in_then_has_no_functions(tmp_path) -> None:
    library = ctypes.CDLL(str(tmp_path / "custom_ops.so"))
    with pytest.raises(AttributeError, match=r"custom_ops.so was not loaded.*'version'"):
        library.version()


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(
    "name", ["libnothing.so", "custom_ops.txt", "libcube.so", "libtorch_openreg.so"]
)
def test_file_that_is_no_library_of_operators_then_fails_as_before(load, name, tmp_path) -> None:
    with pytest.raises(OSError, match=name):
        load(str(tmp_path / name))


def test_file_that_is_damaged_then_fails_as_before(tmp_path) -> None:
    path = tmp_path / "custom_ops.so"
    path.write_bytes(b"\x7fELF no library")
    with pytest.raises(OSError, match="custom_ops"):
        ctypes.CDLL(str(path))


def compiled(folder: Path, source: str, name: str, *needs: str) -> Path:
    file = folder / f"{name}.c"
    file.write_text(source)
    command = ["cc", "-shared", "-fPIC", str(file), f"-L{folder}", *needs, "-o"]
    subprocess.run([*command, str(folder / f"{name}.so")], check=True)
    return folder / f"{name}.so"


@needs_compiler
@pytest.mark.parametrize(
    "source", ["int f(void); int g(void) { return f(); }", "extern int _ZN6popart3Op; int x;"]
)
def test_library_that_needs_poplar_then_loads_with_a_warning(source, tmp_path, caplog) -> None:
    needed = compiled(tmp_path, "int f(void) { return 1; } int _ZN6popart3Op;", "libpopart")
    linked = compiled(tmp_path, source, "anything", "-Wl,--no-as-needed", "-lpopart")
    needed.unlink()
    ctypes.CDLL(str(linked))
    assert "libpopart.so" in caplog.text


@needs_compiler
def test_library_with_a_name_of_poplar_then_loads_with_a_warning(tmp_path, caplog) -> None:
    source = "extern int _ZN6popart2Op; int *get(void) { return &_ZN6popart2Op; }"
    ctypes.CDLL(str(compiled(tmp_path, source, "anything")))
    assert "undefined symbol: _ZN6popart2Op" in caplog.text


@needs_compiler
def test_library_that_needs_something_else_then_fails_as_before(tmp_path) -> None:
    needed = compiled(tmp_path, "int f(void) { return 1; }", "libother")
    linked = compiled(tmp_path, "", "custom_ops", "-Wl,--no-as-needed", "-lother")
    needed.unlink()
    with pytest.raises(OSError, match="libother"):
        ctypes.CDLL(str(linked))


@needs_compiler
def test_library_that_is_there_then_its_functions_are(tmp_path, caplog) -> None:
    path = compiled(tmp_path, "int f(void) { return 7; }", "custom_ops")
    assert ctypes.CDLL(str(path)).f() == 7
    assert ctypes.CDLL(None) is not None
    assert not caplog.records


def test_library_when_switched_off_then_fails_as_before(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_FOREIGN_LIBRARIES", "error")
    with pytest.raises(OSError, match="custom_ops"):
        ctypes.CDLL(str(tmp_path / "custom_ops.so"))


@pytest.mark.parametrize(
    "arguments",
    [
        "deep/custom_ops.so",
        "-std=c++14 -fPIC -g remap.cpp -DONNX=onnx -lpopart -shared -o deep/custom_ops.so",
        "-odeep/custom_ops.so a.o -Wl,-rpath,/opt",
    ],
)
def test_empty_library_then_is_written_and_loads(arguments, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    empty_library.main(arguments.split())
    library = ctypes.CDLL(str(tmp_path / "deep" / "custom_ops.so"))
    assert not isinstance(library, foreign_libraries._StandIn) and not caplog.records
    with pytest.raises(AttributeError, match="undefined symbol"):
        library.function()


def test_empty_library_when_the_machine_is_not_known_then_error() -> None:
    assert empty_library.empty_library("aarch64")[18:20] == (183).to_bytes(2, "little")
    with pytest.raises(ValueError, match="'sparc' are not known"):
        empty_library.empty_library("sparc")
    with pytest.raises(SystemExit):
        empty_library.main(["-shared", "remap.cpp"])


def source(folder: Path, text: str = "// cppimport\n#include <popart/op.hpp>\n") -> Path:
    path = folder / "an_operator.cpp"
    path.write_text(text)
    return path


def test_cpp_for_popart_then_a_library_and_a_module_stand_for_it(tmp_path, caplog) -> None:
    path = source(tmp_path)
    library = examples_utils.load_lib(path, timeout=10)
    assert isinstance(library, foreign_libraries._StandIn)
    assert cppimport.imp_from_filepath(str(path)).sdk_version_hash() == "poptorch_emu"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"C++ for PopART is not compiled: {path}" in caplog.text


def test_steps_of_a_build_then_lead_to_a_library_that_loads(tmp_path) -> None:
    path = source(tmp_path)
    data = importer.setup_module_data("package.an_operator", str(path))
    if importer.is_build_needed(data):
        importer.build_safely(str(path), data)
    ctypes.cdll.LoadLibrary(data["ext_path"])
    assert Path(data["ext_path"]).parent == tmp_path


def test_import_of_cpp_then_finds_it_beside_the_program(tmp_path, monkeypatch) -> None:
    source(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "poptorch_emu.companions.cppimport.import_hook", False)
    importlib.import_module("poptorch_emu.companions.cppimport.import_hook")
    module = importlib.import_module("an_operator")
    monkeypatch.delitem(sys.modules, "an_operator")
    assert module.sdk_version_hash() == "poptorch_emu"


def test_other_cpp_then_says_what_would_compile_it(tmp_path) -> None:
    with pytest.raises(ImportError, match="pip install cppimport"):
        cppimport.imp_from_filepath(str(source(tmp_path, "// cppimport\n#include <pybind11.h>\n")))


# Source of a package like the real one, whose steps look each other up in `importer`.
_BUILDING_INIT = """
def imp_from_filepath(filepath, fullname):
    from cppimport.importer import build_safely, is_build_needed, load_module
    data = {"fullname": fullname, "filepath": filepath, "ext_path": filepath[:-4] + ".so"}
    if is_build_needed(data):
        build_safely(filepath, data)
    load_module(data)
    return data["module"]
"""
_BUILDING_IMPORTER = """
def is_build_needed(data):
    return True

def build_safely(filepath, data):
    data["built"] = filepath

def load_module(data):
    data["module"] = "built from " + data["built"]
"""
_PROGRAM = """
import poptorch_emu.emulator
poptorch_emu.emulator.install()
import ctypes
import cppimport
print(cppimport.imp_from_filepath("plain.cpp", "plain"))
print(cppimport.imp_from_filepath("an_operator.cpp", "an_operator").sdk_version_hash())
print(type(ctypes.CDLL("an_operator.so")).__name__)
import cppimport.import_hook
import an_operator
print(an_operator.sdk_version_hash(), cppimport.import_hook.NAME)
"""


def test_real_package_then_builds_all_but_what_is_for_popart(tmp_path) -> None:
    package = tmp_path / "cppimport"
    package.mkdir()
    (package / "__init__.py").write_text(_BUILDING_INIT)
    (package / "importer.py").write_text(_BUILDING_IMPORTER)
    (package / "import_hook.py").write_text("NAME = __name__")
    (tmp_path / "plain.cpp").write_text("// cppimport\nint answer() { return 42; }\n")
    source(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{_PROGRAM}"
    ended = run_forked(["-c", code], folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "built from plain.cpp",
        "poptorch_emu",
        "_StandIn",
        "poptorch_emu cppimport.import_hook",
    ]

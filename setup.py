"""Builds the C++ engine from csrc/ for the PyTorch that is there; see pyproject.toml, too."""

from __future__ import annotations

import os
import shutil
import sysconfig
from itertools import groupby
from pathlib import Path

from packaging.requirements import Requirement
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import PlatformError

try:
    import torch
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ModuleNotFoundError as error:
    raise SystemExit(
        f"The engine is built against PyTorch, but this Python has no module '{error.name}'. "
        "`pip install .` fetches what the build needs; with --no-build-isolation, install it "
        "first: it is the list `requires` of [build-system] in pyproject.toml."
    ) from error

# Each minor version has a binary interface of its own, so the engine has its number in its name.
VERSION = "_{}_{}".format(*torch.__version__.split("."))
ROOT = Path(__file__).parent
CSRC = ROOT / "csrc"
# Relative, as setuptools wants them.
SOURCES = sorted(path.relative_to(ROOT) for path in CSRC.rglob("*.cpp"))
HEADERS = sorted(path.relative_to(ROOT) for path in CSRC.rglob("*.h"))

WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
IS_DEBUG = os.environ.get("DEBUG") == "1"
# Python's own flags ask for -g, which takes a third of the time of a build.
OPTIMISATION = ["-O0", "-g", "-D_GLIBCXX_ASSERTIONS"] if IS_DEBUG else ["-O2", "-g0"]

# "address,undefined" or "thread"; `make sanitize` builds and runs both. Whether an object has the
# class it claims (vptr) can't be asked of PyTorch's, whose type information is hidden.
SANITIZE = os.environ.get("SANITIZE")
if SANITIZE:
    SANITIZER = [f"-fsanitize={SANITIZE}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
    OPTIMISATION = ["-O1", "-g1", "-fno-omit-frame-pointer"]
else:
    SANITIZER = []
# PyTorch's headers share work among threads only where the compiler knows OpenMP. ThreadSanitizer
# does not: it would take what its barriers order for races.
OPENMP = [] if SANITIZE == "thread" else ["-fopenmp"]


def unit_of(source: Path) -> str:
    """Returns the name of the unit in which a file is compiled: that of its folder in csrc/.

    `common` reads PyTorch's headers of autograd as `ops` does, so they share a unit, and `numerics`
    is small.
    """
    folder = source.parts[1] if len(source.parts) > 2 else "bindings"
    return {"common": "ops", "numerics": "ops"}.get(folder, folder)


def write_units(folder: Path) -> list[str]:
    """Writes a file for each unit that includes all of its sources, and returns their paths.

    PyTorch's headers take several times as long as our code, and a unit reads them once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units = []
    for name, sources in groupby(sorted(SOURCES, key=unit_of), unit_of):
        unit = folder / f"{name}.cpp"
        text = "".join(f'#include "{(ROOT / source).resolve()}"\n' for source in sources)
        # One that is as it was keeps its time, so that ninja compiles only what has changed.
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        units.append(str(unit))
    return units


def check_machine(requirements: list[str]) -> None:
    """Refuses to build where that can't work.

    Raises:
        PlatformError: no compiler, no headers of Python, or another PyTorch than is required.
    """
    required = next(each for each in map(Requirement, requirements) if each.name == "torch")
    if not required.specifier.contains(torch.__version__, prereleases=True):
        raise PlatformError(
            f"The engine needs {required}, but found PyTorch {torch.__version__}. "
            f"Install the other: pip install '{required}'"
        )
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler.split()[0]) is None:
        raise PlatformError(
            f"The engine needs a compiler of C++20, but found no command '{compiler}'. Install "
            "one (on Debian and Ubuntu: apt-get install g++) or name yours in CXX."
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise PlatformError(
            f"The engine needs the headers of Python, but found no {header}. Install them (on "
            "Debian and Ubuntu: apt-get install python3-dev)."
        )


class BuildEngine(BuildExtension):
    """Compiles the engine in units, or file by file for debuggers."""

    def finalize_options(self) -> None:
        """Keeps the objects of a build in place, so that the next one compiles what changed."""
        if self.build_temp is None and (self.inplace or self.editable_mode):
            self.build_temp = str(Path("build", f"objects{VERSION}"))
        super().finalize_options()

    def build_extensions(self) -> None:
        """Says what will take its time, and compiles."""
        check_machine(self.distribution.install_requires)
        (engine,) = self.extensions
        if IS_DEBUG:
            print("Compiling the engine file by file: about five minutes on two cores.", flush=True)
        else:
            duration = "some minutes" if SANITIZE else "about a minute"
            print(f"Compiling the engine: {duration} on two cores.", flush=True)
            engine.sources = write_units(Path(self.build_temp, "units"))
        super().build_extensions()


class BuildPackage(build_py):
    """Takes the page that messages name along, for `python -m poptorch_emu --explain`."""

    def run(self) -> None:
        """Copies the package, and the page into it; where the package stays, so does the page."""
        super().run()
        if not self.editable_mode:
            page = str(Path(self.build_lib, "poptorch_emu", "troubleshooting.md"))
            self.copy_file(str(ROOT / "docs" / "troubleshooting.md"), page)


setup(
    ext_modules=[
        CppExtension(
            f"poptorch_emu._C{VERSION}",
            [str(source) for source in SOURCES],
            depends=[str(header) for header in HEADERS],
            include_dirs=[str(CSRC.resolve())],
            extra_compile_args=[
                "-std=c++20",
                "-fvisibility=hidden",
                *WARNINGS,
                *OPTIMISATION,
                *OPENMP,
                *SANITIZER,
            ],
            extra_link_args=[*OPENMP, *SANITIZER],
        )
    ],
    cmdclass={"build_ext": BuildEngine, "build_py": BuildPackage},
)

"""A wheel runs when it is installed without the source tree.

`make test-wheel` builds the wheel from the sdist. Otherwise a wheel is built here from the objects
of the last build in place, and ninja compiles the outdated ones again.
"""

import fcntl
import importlib.metadata
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# The version is read, not imported, because the engine need not be built in the source tree.
__version__ = runpy.run_path(str(ROOT / "poptorch_emu/version.py"))["__version__"]
VERSION = "_{}_{}".format(*torch.__version__.split("."))
OBJECTS = Path("build", f"objects{VERSION}")
pytestmark = pytest.mark.slow

# Prints the path of the package, and the output of `python -m poptorch_emu` for the same arguments.
TELLING = """
import runpy, poptorch_emu
print(poptorch_emu.__file__, flush=True)
runpy.run_module("poptorch_emu", run_name="__main__", alter_sys=True)
"""


def _run(*command: object, cwd: Path) -> str:
    """Returns the output of a command, without variables that lead to the source tree."""
    hidden = ("PYTHON", "POPTORCH", "POPLAR")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    # The first ninja on the path is that of the build in place, because another would not know its
    # objects.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, "MPLBACKEND": "Agg", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = request.config.getoption("--wheel")
    if given is not None:
        return Path(given).resolve()
    if not list((ROOT / OBJECTS).rglob("*.o")):
        pytest.skip("the engine was not built in place; `make test-wheel` builds a wheel")
    folder = tmp_path_factory.mktemp("built")
    # Workers of one test run share the objects, and ninja locks nothing.
    with (ROOT / OBJECTS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run(
            sys.executable, "setup.py", "-q",
            "egg_info", "--egg-base", folder,
            "build", "--build-temp", OBJECTS, "--build-lib", folder / "lib",
            "bdist_wheel", "--skip-build", "--bdist-dir", folder / "bdist", "--dist-dir", folder,
            cwd=ROOT,
        )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; the packages that it needs are those of this Python."""
    if not list(importlib.metadata.distributions(name="pip")):
        pytest.skip("pip installs the wheel")
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # Folders of installed packages only, because an editable install adds the source tree to the
    # path.
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    python = folder / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    _run(*pip, "--ignore-installed", wheel, cwd=folder)
    return folder


def test_wheel_then_holds_the_package_its_pages_types_and_licences_alone(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"poptorch_emu-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"poptorch_emu", info}
    engines = {name for name in names if name.endswith(".so")}
    versions = [re.fullmatch(r"poptorch_emu/_C(_2_\d+)\.[\w-]+\.so", name) for name in engines]
    assert VERSION in {version[1] for version in versions if version} and all(versions)
    source = ROOT / "poptorch_emu"
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in source.rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyc")
    }
    assert "poptorch_emu/py.typed" in ours and "poptorch_emu/report/page/page.css" in ours
    ours.add("poptorch_emu/troubleshooting.md")  # Copied from docs/.
    assert {name for name in names if not name.startswith(info)} - engines == ours
    licences = {name.removeprefix(f"{info}/licenses/") for name in names if "/licenses/" in name}
    charts = "poptorch_emu/report/page/echarts/"
    assert licences == {"LICENSE", f"{charts}LICENSE", f"{charts}NOTICE"}


def test_installed_wheel_then_is_what_runs_and_says_its_version(installed: Path):
    bin_folder = installed / "venv" / "bin"
    python = bin_folder / "python"
    told = _run(python, "-c", TELLING, "--explain", "no-loss", cwd=installed)
    where, _, explained = told.partition("\n")
    assert Path(where).is_relative_to(installed / "venv") and "It says" in explained
    said = _run(python, "-m", "poptorch_emu", "--version", cwd=installed)
    assert said == f"poptorch_emu {__version__}\n"
    assert __version__ in _run(bin_folder / "poprun", "--version", cwd=installed)
    assert "usage: poptorch-emu view" in _run(
        bin_folder / "poptorch-emu", "view", "-h", cwd=installed
    )


def test_wheel_beside_an_installed_pytorch_then_pip_would_install_nothing_else(
    wheel: Path, tmp_path: Path
):
    report = tmp_path / "report.json"
    pip = (sys.executable, "-m", "pip", "install", "--dry-run", "--no-index")
    _run(*pip, "--ignore-installed", "--no-deps", "--report", report, wheel, cwd=tmp_path)
    alone = [each["metadata"]["name"] for each in json.loads(report.read_text())["install"]]
    _run(*pip, "--report", report, wheel, cwd=tmp_path)
    found = [each["metadata"]["name"] for each in json.loads(report.read_text())["install"]]
    assert alone == ["poptorch_emu"] and found in (alone, [])


def test_installed_wheel_then_runs_the_first_tutorial(installed: Path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    shutil.copy(ROOT / "tutorials" / "basics" / "basics.py", installed)
    printed = _run(installed / "venv" / "bin" / "python", "basics.py", cwd=installed)
    assert "The loaded program gives the same scores: True" in printed

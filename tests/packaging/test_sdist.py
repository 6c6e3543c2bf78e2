"""The sdist contains the tracked files, and no other files of the folder."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Files that only the sdist contains, and files that only the repository contains.
MADE = {"PKG-INFO", "setup.cfg"}
LEFT_OUT = (".ci/", ".github/", ".gitignore", ".pre-commit-config.yaml", "MANIFEST.in")
STRAY = [
    "build/objects/units/ops.cpp",
    "docs/_build/html/index.html",
    "poptorch_emu/_C_2_13.cpython-311-x86_64-linux-gnu.so",
    "poptorch_emu/__pycache__/enums.cpython-311.pyc",
    "tests/.pytest_cache/README.md",
    "tutorials/basics/.ipynb_checkpoints/basics.ipynb",
    "tutorials/basics/poptorch_error.log",
]


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("what belongs to the project is known by git")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = done.stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


@pytest.mark.slow
def test_sdist_then_holds_what_is_tracked_and_no_stray_file(tmp_path):
    tracked = tracked_files()
    for name in tracked:
        copy = tmp_path / "project" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    for name in STRAY:
        stray = tmp_path / "project" / name
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("stray")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)],
        cwd=tmp_path / "project",
        check=True,
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        found = {m.name.partition("/")[2] for m in tar.getmembers() if m.isfile()}
    found = {name for name in found if ".egg-info/" not in name} - MADE
    assert found - set(tracked) == set()
    missing = {name for name in tracked if not name.startswith(LEFT_OUT)} - found
    assert missing <= {"MANIFEST.in"}

"""Measures the compilation of the engine, and with `--demo` a `make demo` on a fresh machine.

The engine is compiled in a temporary folder. The demonstration runs in a clone of the last commit
with its own environment; pip may use packages that earlier runs have cached.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
# Beginnings of output lines whose time is printed: steps of make, and the first epoch's result.
_MILESTONES = ("Installing PyTorch", "Compiling the engine", "Epoch 1: loss")


def cpu_seconds() -> float:
    """Returns the CPU time of finished child processes in seconds, user and system time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compile_engine(folder: Path) -> None:
    """Compiles the engine as `pip install .` does, with all files in `folder`."""
    places = ["--build-temp", str(folder / "objects"), "--build-lib", str(folder / "result")]
    command = [sys.executable, "setup.py", "build_ext", *places]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def demonstrate(folder: Path) -> None:
    """Runs `make demo` in a clone and prints the time of each milestone."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    start_seconds = time.perf_counter()
    with subprocess.Popen(
        ["make", f"PYTHON={sys.executable}", "demo"],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(_MILESTONES):
                print(f"{time.perf_counter() - start_seconds:5.0f} s  {line.strip()}", flush=True)
    if process.returncode:
        raise SystemExit(f"`make demo` in {folder} failed with exit status {process.returncode}.")


def main() -> None:
    """Prints the measured seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="run `make demo` in a clone instead")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        if args.demo:
            demonstrate(Path(folder, "clone"))
            return
        start_seconds, start_cpu_seconds = time.perf_counter(), cpu_seconds()
        compile_engine(Path(folder))
        print(
            f"compiled in {time.perf_counter() - start_seconds:.0f} s by the clock, "
            f"{cpu_seconds() - start_cpu_seconds:.0f} s of the CPU"
        )


if __name__ == "__main__":
    main()

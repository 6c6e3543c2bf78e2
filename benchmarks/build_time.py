"""How long the engine takes to compile, and with `--demo` how long `make demo` on a fresh machine.

The engine is compiled in a temporary folder. The demonstration runs in a clone of the last commit,
with an environment of its own; what pip has kept of earlier runs is at hand.
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
# Lines that begin so are worth their time: what make starts, and the result of the first epoch.
_MILESTONES = ("Installing PyTorch", "Compiling the engine", "Epoch 1: loss")


def cpu_seconds() -> float:
    """Returns how long finished child processes were running, within the system too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compile_engine(folder: Path) -> None:
    """Compiles the engine as `pip install .` does; what that writes is in `folder`."""
    places = ["--build-temp", str(folder / "objects"), "--build-lib", str(folder / "result")]
    command = [sys.executable, "setup.py", "build_ext", *places]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def demonstrate(folder: Path) -> None:
    """Runs `make demo` in a clone and prints when it reaches each milestone."""
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
        raise SystemExit(f"`make demo` in {folder} ended with {process.returncode}.")


def main() -> None:
    """Prints the seconds of each."""
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

"""Measures `import poptorch_emu` after PyTorch has been imported.

Each line comes from its own process. The package must have its bytecode, as after a first import.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

_ROUNDS = 9
_CODE = """
import time
import torch
start = time.perf_counter()
import poptorch_emu
print(time.perf_counter() - start)
"""


def seconds() -> float:
    """Returns the time of the import in a new process, in seconds."""
    done = subprocess.run([sys.executable, "-c", _CODE], stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def main() -> None:
    """Prints median and range over several processes, after one warm-up."""
    seconds()
    found = sorted(seconds() for _ in range(_ROUNDS))
    print(f"{statistics.median(found):.2f} s, between {found[0]:.2f} and {found[-1]:.2f} s")


if __name__ == "__main__":
    main()

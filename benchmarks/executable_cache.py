"""What a cache of executables saves: a compilation, and the same in a second process.

Each line is a process of its own. Times are `compilationTime()`: from the first call until there is
an executable. Taking a device and uploading weights is the same for both and not in it; imports
come before.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

import torch
import torch._dynamo  # The first fake tensor imports it; that is no part of a compilation.
from compile_time import BertLike
from models import CASES
from torch import nn

import poptorch_emu as poptorch

_REPETITIONS = 3


def prepared(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], poptorch.Options]:
    """Returns model, batch and options of a case."""
    options = poptorch.Options().connectionType(poptorch.ConnectionType.OnDemand)
    torch.manual_seed(0)
    if name == "bert":
        tokens = torch.randint(30522, (1, 128))
        return BertLike(), (tokens, tokens), options
    case = CASES["mnist"]
    options.Training.gradientAccumulation(8)
    return case.make(), case.batch(case.rows * 8), options


def compile_once(name: str, cache_dir: str) -> None:
    """Compiles for training and prints the seconds it took."""
    model, batch, options = prepared(name)
    options.enableExecutableCaching(cache_dir)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    training.compile(*batch)
    print(training.compilationTime().total_seconds())


def seconds(name: str, cache_dir: str) -> float:
    """Returns what a new process takes to compile."""
    command = [sys.executable, __file__, name, cache_dir]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return float(done.stdout)


def main() -> None:
    """Prints the best of several misses and of several hits."""
    for name in ("mnist", "bert"):
        misses, hits = [], []
        for _ in range(_REPETITIONS):
            with tempfile.TemporaryDirectory() as cache_dir:
                misses.append(seconds(name, cache_dir))
                hits.append(seconds(name, cache_dir))
        miss, hit = min(misses), min(hits)
        print(f"{name}: miss {miss:.3f} s, hit {hit:.3f} s, {hit / miss:.0%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_once(sys.argv[1], sys.argv[2])
    else:
        main()

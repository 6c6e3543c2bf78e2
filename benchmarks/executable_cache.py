"""What a cache of executables saves: a compilation, and the same in a second process.

Each line is a process of its own. Times are `compilationTime()`, from the first call until there is
an executable, and the CPU time that Python and the engine spent on it. Models are compiled offline:
taking a device and uploading weights is the same for both. Imports come before.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile

import torch
import torch._dynamo  # The first fake tensor imports it; that is no part of a compilation.
from compile_time import BertLike
from models import CASES, ResNet50Like
from torch import nn

import poptorch_emu as poptorch

_PAIRS = 5


def prepared(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], poptorch.Options]:
    """Returns model, batch and options of a case."""
    options = poptorch.Options().useOfflineIpuTarget()
    torch.manual_seed(0)
    if name == "bert":
        tokens = torch.randint(30522, (1, 128))
        return BertLike(), (tokens, tokens), options
    if name == "resnet50":
        return ResNet50Like(), (torch.randn(2, 3, 64, 64), torch.randint(1000, (2,))), options
    case = CASES["mnist"]
    options.Training.gradientAccumulation(8)
    return case.make(), case.batch(case.rows * 8), options


def compile_once(name: str, cache_dir: str) -> None:
    """Compiles for training and prints the seconds it took, by the clock and of the CPU."""
    model, batch, options = prepared(name)
    options.enableExecutableCaching(cache_dir)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    training.compile(*batch)
    user = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    print(training.compilationTime().total_seconds(), user)


def seconds(name: str, cache_dir: str) -> list[float]:
    """Returns what a new process takes to compile, by the clock and of the CPU."""
    command = [sys.executable, __file__, name, cache_dir]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Prints medians of several pairs of a miss and a hit."""
    for name in ("mnist", "resnet50", "bert"):
        pairs = []
        for _ in range(_PAIRS):
            with tempfile.TemporaryDirectory() as cache_dir:
                pairs.append([*seconds(name, cache_dir), *seconds(name, cache_dir)])
        miss, miss_user, hit, hit_user = (
            statistics.median(column) for column in zip(*pairs, strict=True)
        )
        print(
            f"{name}: miss {miss:.3f} s, hit {hit:.3f} s, {hit / miss:.0%}; of the CPU "
            f"{miss_user:.3f} s, {hit_user:.3f} s, {hit_user / miss_user:.0%}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_once(sys.argv[1], sys.argv[2])
    else:
        main()

"""Measures a compilation, and its repetition in a second process with a cache of executables.

Each line comes from its own process. Times are `compilationTime()`, from the first call until the
executable exists, and the CPU time of Python and the engine. Models are compiled offline, because
attaching a device and uploading weights take the same time in both cases. Imports are not counted.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile

import torch
import torch._dynamo  # The first fake tensor imports it, which is not counted.
from compile_time import BertLike
from models import CASES, ResNet50Like
from torch import nn

import poptorch_emu as poptorch

_PAIRS = 5


def prepared(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], poptorch.Options]:
    """Returns the model, the batch and the options of a case."""
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
    """Compiles for training and prints wall-clock and CPU time in seconds."""
    model, batch, options = prepared(name)
    options.enableExecutableCaching(cache_dir)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    training.compile(*batch)
    user = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    print(training.compilationTime().total_seconds(), user)


def seconds(name: str, cache_dir: str) -> list[float]:
    """Returns wall-clock and CPU time of a compilation in a new process, in seconds."""
    command = [sys.executable, __file__, name, cache_dir]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Prints medians over several pairs of a cache miss and a hit."""
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

"""Compares the resident memory of a pipelined transformer with its memory plan.

The measured value is the growth of the process over its size without a device: variables,
accumulators, stashes and workspace, at the peak of several training calls. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

NUM_STAGES = 4
MIB = 2**20


class Transformer(nn.Module):
    """Encoder layers spread evenly over the stages, and a classifier of the mean."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for index, layer in enumerate(self.layers):
            stage = index * NUM_STAGES // len(self.layers)
            with poptorch.Block(f"layer{index}", ipu_id=stage):
                x = layer(x)
        with poptorch.Block("head", ipu_id=NUM_STAGES - 1):
            logits = self.head(x.mean(dim=1))
            return logits, F.cross_entropy(logits, labels)


def resident_mib(field: str) -> float:
    """Returns `VmRSS` (current) or `VmHWM` (peak) of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def settle() -> None:
    """Releases free memory and resets the peak, so that only held memory counts from now on."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def train(num_layers: int, width: int, sequence: int, rows: int, recomputation: int | None):
    """Returns a compiled training model without a device, and a batch for one call."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2 * NUM_STAGES)
    # The plan is that of the machine, which recomputes.
    emulator.set_recomputation(options, "executed")
    if recomputation is not None:
        options._Popart.set("autoRecomputation", recomputation)
    model = Transformer(num_layers, width)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    rows *= 2 * NUM_STAGES
    batch = torch.randn(rows, sequence, width), torch.randint(10, (rows,))
    training.compile(*batch)
    training.detachFromDevice()
    return training, batch


def main() -> None:
    """Prints the plan, the measured growth and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--recomputation", type=int, choices=range(5))
    args = parser.parse_args()

    # A small model runs first, because the code pages of kernels are no memory of the model.
    small, batch = train(NUM_STAGES, 64, args.sequence, 1, args.recomputation)
    small(*batch)
    small.destroy()
    training, batch = train(args.layers, args.width, args.sequence, args.rows, args.recomputation)
    settle()
    before = resident_mib("VmRSS")
    training.attachToDevice()
    for _ in range(3):
        training(*batch)
    growth = resident_mib("VmHWM") - before

    plan = emulator.memory(training)
    planned = plan.num_bytes() / MIB
    print(plan)
    print(f"\nplan {planned:.0f} MiB, measured {growth:.0f} MiB, ratio {growth / planned:.2f}")


if __name__ == "__main__":
    main()

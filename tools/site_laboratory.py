"""Writes the laboratory of the documentation: `python tools/site_laboratory.py FILE`.

The laboratory uses the model of the pipelining tutorial, with the tutorial's initial sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tutorials" / "pipelining")]

import mnist_pipeline  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402

ROWS, ACCUMULATION = 8, 8


def write(path: Path, sweep: Mapping[str, Sequence[Any]] | None = None) -> None:
    """Writes the page, with the choices of `sweep` or the default ones."""
    options = poptorch.Options().modelName("The network of the pipelining tutorial")
    options.Training.gradientAccumulation(ACCUMULATION)
    options.setExecutionStrategy(mnist_pipeline.strategy("pipelined"))
    network = mnist_pipeline.Network()
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=1e-3)
    model = poptorch.trainingModel(network, options, optimizer)
    count = ROWS * ACCUMULATION
    images, labels = torch.zeros(count, 1, 28, 28), torch.zeros(count, dtype=torch.long)
    poptorch.emulator.lab(model, images, labels, path=path, sweep=sweep)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

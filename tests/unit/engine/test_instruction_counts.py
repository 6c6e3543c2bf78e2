"""Number of instructions in an update of a small model, a guard of speed without a clock."""

from __future__ import annotations

import re

import torch

import poptorch_emu as poptorch

ACCUMULATION = 8
# Counted on 2026-11-28. Each step pays for an instruction that the compiler adds.
STORED = {"instructions": 105, "loads": 28, "stores": 18}


class Mlp(torch.nn.Module):
    """The MLP of the benchmarks: 32-64-64-8 in two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU()
        )
        self.head = torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("body", ipu_id=0):
            x = self.body(x)
        with poptorch.Block("head", ipu_id=1):
            scores = self.head(x)
            return scores, torch.nn.functional.cross_entropy(scores, labels)


def counts_of_a_window(text: str) -> dict[str, int]:
    """Counts what one window runs, given the text of a program."""
    counts = dict.fromkeys(STORED, 0)
    runs = 0
    for line in text.splitlines():
        if re.match(r"(forward|backward) \d+ on IPU", line):
            runs = 1  # It runs once for all micro-batches.
        elif re.match(r"update \d+.* on IPU", line):
            runs = 1
        # It runs once for all micro-batches, so it does not count.
        elif line.startswith("prepare "):
            runs = 0
        elif re.match(r"  .* \+?= \w+::", line):
            counts["instructions"] += runs
        elif re.match(r"  %\d+ = ", line):
            counts["loads"] += runs
        elif re.match(r"  %\d+ -> ", line):
            counts["stores"] += runs
    return counts


def test_window_of_an_mlp_then_takes_no_more_instructions_than_before() -> None:
    model = Mlp()
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.01))
    training.compile(torch.randn(64, 32), torch.randint(8, (64,)))
    assert training._executable is not None
    text = training._executable.program.text()
    assert f"{ACCUMULATION} micro-batches at once" in text
    counts = counts_of_a_window(text)
    for name, stored in STORED.items():
        assert abs(counts[name] - stored) <= 0.05 * stored, counts

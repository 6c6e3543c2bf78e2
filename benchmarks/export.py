"""Compares the step time of an exported pipeline on two processes with the emulator's.

Both do the same updates with two workers of one thread each: the emulator's two workers, and two
processes that share the stages. Rounds of processes take turns. The lines show medians, and the
ratio of exported to emulated within each round, for wall-clock time and for CPU time of all
processes. `--csv results/export.csv` records the run, CPU time as emulated to exported.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import result_files
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import CASES
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

NUM_MICRO_BATCHES = 8
ROWS = 8


class Blocks(nn.Module):
    """Two blocks of layers with a skip connection between them, on two IPUs."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(*[layer for _ in range(3) for layer in _layers(width)])
        self.second = nn.Sequential(*[layer for _ in range(3) for layer in _layers(width)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        value = self.first(x)
        poptorch.Block.start("second", ipu_id=1)
        return F.cross_entropy(self.head(self.second(value) + value), labels)


def _layers(width: int) -> tuple[nn.Module, ...]:
    return nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)


class LossAlone(nn.Module):
    """Returns only the loss of a model that returns its output and the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(x, labels)[1]


def _executor(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    options = poptorch.Options().showCompilationProgressBar(False)
    if name == "blocks":
        model: nn.Module = Blocks()
        batch = torch.randn(NUM_MICRO_BATCHES * ROWS, 256), torch.randint(10, (64,))
        options.Training.gradientAccumulation(NUM_MICRO_BATCHES)
    else:
        case = CASES[name]
        model, batch = LossAlone(case.make()), case.batch(case.rows * case.accumulation)
        options.Training.gradientAccumulation(case.accumulation)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3)
    return poptorch.trainingModel(model, options, optimizer), batch


def _emulated_step(name: str) -> Callable[[], object]:
    executor, batch = _executor(name)
    return lambda: executor(*batch)


def _exported_step(name: str) -> Callable[[], object]:
    executor, batch = _executor(name)
    executor.compile(*batch)
    pipeline = emulator.export_pipeline(executor)
    numbers = range(dist.get_rank(), pipeline.num_stages, dist.get_world_size())
    stages = [pipeline.stage(number, "cpu") for number in numbers]
    schedule = pipeline.schedule(stages)
    optimizers = [pipeline.optimizer(stage.submod) for stage in stages]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        pipeline.step(schedule, *batch)
        for optimizer in optimizers:
            optimizer.step()

    return step


def _seconds(step: Callable[[], object], num_steps: int) -> tuple[float, float]:
    """Returns the median wall-clock time of a step, and its mean CPU time in this process."""
    for _ in range(3):  # The first calls are slower.
        step()
    walls, busy = [], time.process_time()
    for _ in range(num_steps):
        start = time.perf_counter()
        step()
        walls.append(time.perf_counter() - start)
    return statistics.median(walls), (time.process_time() - busy) / num_steps


def _child(candidate: str, name: str, num_steps: int) -> None:
    torch.set_num_threads(1)
    if candidate == "emulated":
        print(*_seconds(_emulated_step(name), num_steps))
        return
    dist.init_process_group("gloo")
    print(*_seconds(_exported_step(name), num_steps))
    dist.destroy_process_group()


def _measure(candidate: str, name: str, num_steps: int) -> tuple[float, float]:
    """Returns wall-clock and CPU time of a step in milliseconds, over all its processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POPTORCH_EMU_WORKERS": "2"}
    environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2")
    command = [sys.executable, __file__, "--child", candidate, "--model", name]
    command += ["--steps", str(num_steps)]
    processes = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(1 if candidate == "emulated" else 2)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    walls, busy = zip(
        *([float(word) * 1e3 for word in words[-2:]] for words in outputs), strict=True
    )
    return max(walls), sum(busy)


def main() -> None:
    """Runs all rounds and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    trained = [name for name, case in CASES.items() if case.make_optimizer is not None]
    parser.add_argument("--model", choices=["blocks", *trained], default="blocks")
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    parser.add_argument("--child", help="measure one candidate in this process")
    options = parser.parse_args()
    if options.child:
        _child(options.child, options.model, options.steps)
        return
    pairs = [
        tuple(_measure(each, options.model, options.steps) for each in ("emulated", "exported"))
        for _ in range(options.rounds)
    ]
    ratios: list[list[float]] = []
    for index, clock in enumerate(("wall", "processors")):
        emulated, exported = zip(*((e[index], x[index]) for e, x in pairs), strict=True)
        ratios.append([x / e for e, x in zip(emulated, exported, strict=True)])
        print(
            f"{clock}: emulated {statistics.median(emulated):.1f} ms, exported "
            f"{statistics.median(exported):.1f} ms; ratios "
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios[index])}"
        )
    if options.csv:
        walls, cpus = ratios
        row = {
            "model": options.model,
            "rounds": options.rounds,
            "speed_ratio_min": min(walls),
            "speed_ratio_median": statistics.median(walls),
            "speed_ratio_max": max(walls),
            "cpu_ratio_min": 1 / max(cpus),
            "cpu_ratio_max": 1 / min(cpus),
        }
        result_files.append(options.csv, [row])


if __name__ == "__main__":
    main()

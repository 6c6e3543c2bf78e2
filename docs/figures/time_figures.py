"""Draws predictions of the model of time for pipelines, replicas, streaming memory and the host.

Run it: `python docs/figures/time_figures.py`. It writes its pictures beside itself.
Nothing is trained: the model is made of shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.machine.links import POD_IPUS, all_reduce_seconds, ring_seconds
from poptorch_emu.machine.time_numbers import NUMBERS

FOLDER = Path(__file__).parent
WIDTH, LENGTH, ROWS, LAYERS = 768, 128, 8, 12
SYSTEM = "bow-pod64"


class Encoder(nn.Module):
    """Layers of a Transformer, spread evenly over the IPUs, and a loss."""

    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.num_ipus = num_ipus
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the mean of the squares, which is the loss."""
        for index, layer in enumerate(self.layers):
            ipu = index * self.num_ipus // LAYERS
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                x = layer(x)
                if index + 1 == LAYERS:
                    return poptorch.identity_loss((x * x).mean(), "none")
        raise AssertionError("the last layer returns")


def trainer(
    num_ipus: int = 4,
    accumulation: int = 16,
    order: str = "grouped",
    change: Callable[[poptorch.Options], Any] = lambda options: None,
) -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
    """Returns a model of meta tensors, and its batch."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(poptorch.PipelinedExecution())
    options.Precision.setPartialsType(torch.half)
    emulator.set_schedule(options, order)
    change(options)
    with torch.device("meta"):
        model = Encoder(num_ipus).half()
        batch = torch.empty(
            ROWS * accumulation * options.replication_factor, LENGTH, WIDTH, dtype=torch.half
        )
    optimizer = poptorch.optim.AdamW(model.parameters(), accum_type=torch.half)
    return poptorch.trainingModel(model, options, optimizer), batch


def draw_pipelines() -> None:
    """Draws one window of a grouped and of an interleaved pipeline."""
    figure, axes = plt.subplots(2, 1, figsize=(9, 4), sharex=True)
    for axis, order in zip(axes, ("grouped", "interleaved"), strict=True):
        model, batch = trainer(4, 8, order)
        emulator.timeline(model, batch, system=SYSTEM).plot(axis)
        axis.set(title=order, xlabel="")
    axes[0].get_legend().remove()
    axes[-1].set_xlabel("milliseconds")
    save(figure, "time_pipelines")


def draw_ramp() -> None:
    """Draws the cost of filling and emptying a pipeline, against accumulation."""
    counts = [8, 16, 32, 64, 128, 256, 512]
    model, batch = trainer()
    sweep = emulator.what_if(model, batch, sweep={"accumulation": counts}, system=SYSTEM)
    figure, axis = plt.subplots(figsize=(6, 3.5))
    axis.semilogx(counts, [point.throughput for point in sweep.points], "o-", base=2)
    axis.set(xlabel="micro-batches of an update", ylabel="rows per second", ylim=0)
    save(figure, "time_ramp")


def draw_scaling() -> None:
    """Draws replicas of one IPU: all work, without waiting for the host, and the ideal."""
    counts = [1, 2, 4, 8, 16, 32, 64]
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for accumulation, synthetic, style in (
        (1, False, "C3o-"),
        (1, True, "C1o-"),
        (16, True, "C0o-"),
    ):
        model, batch = trainer(
            1, accumulation, change=lambda o, s=synthetic: o.enableSyntheticData(s)
        )
        sweep = emulator.what_if(model, batch, sweep={"replicas": counts}, system=SYSTEM)
        speeds = [point.throughput for point in sweep.points]
        name = f"accumulation {accumulation}, {'data on the device' if synthetic else 'with input'}"
        axis.loglog(counts, [s / speeds[0] for s in speeds], style, base=2, label=name)
    axis.loglog(counts, counts, "k:", base=2, label="ideal")
    axis.set(xlabel="replicas of one IPU", ylabel="times as fast as one")
    axis.legend(fontsize=8)
    save(figure, "time_scaling")


def draw_streaming_memory() -> None:
    """Draws the cost of optimiser state in streaming memory, against accumulation."""
    counts = [8, 16, 32, 64, 128, 256]
    off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
    figure, axis = plt.subplots(figsize=(6, 3.5))
    changes = {
        "on chip": lambda options: None,
        "off chip": lambda options: options.TensorLocations.setOptimizerLocation(off_chip),
    }
    for name, change in changes.items():
        model, batch = trainer(change=change)
        sweep = emulator.what_if(model, batch, sweep={"accumulation": counts}, system=SYSTEM)
        axis.semilogx(counts, [p.throughput for p in sweep.points], "o-", base=2, label=name)
    axis.set(xlabel="micro-batches of an update", ylabel="rows per second", ylim=0)
    axis.legend(title="optimiser state")
    save(figure, "time_streaming_memory")


def draw_input() -> None:
    """Draws input for which an IPU waits, and input that arrives through separate tiles."""
    rows = [1, 2, 4, 8, 16, 32]
    figure, axis = plt.subplots(figsize=(6, 3.5))
    for num_io_tiles in (0, 32, 64, 128):
        speeds = [_input_speed(count, num_io_tiles) for count in rows]
        name = f"{num_io_tiles} tiles for I/O" if num_io_tiles else "waited for"
        axis.semilogx(rows, speeds, "o-", base=2, label=name)
    axis.set(xlabel="images of a micro-batch", ylabel="images per second", ylim=0)
    axis.legend()
    save(figure, "time_input")


def _input_speed(rows: int, num_io_tiles: int) -> float:
    options = poptorch.Options().deviceIterations(32).showCompilationProgressBar(False)
    options.setExecutionStrategy(poptorch.ShardedExecution())
    if num_io_tiles:
        options.TensorLocations.numIOTiles(num_io_tiles)
    with torch.device("meta"):
        model = Images(num_io_tiles > 0).half().eval()
        batch = torch.empty(rows * 32, 3, 224, 224, dtype=torch.half)
    return emulator.estimate(
        poptorch.inferenceModel(model, options), batch, system=SYSTEM
    ).throughput


class Images(nn.Module):
    """Some convolutions, whose input may be transferred while they compute."""

    def __init__(self, is_overlapped: bool) -> None:
        super().__init__()
        self.is_overlapped = is_overlapped
        sizes = (3, 64, 128, 256)
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(first, second, 3, stride=2), nn.ReLU())
                for first, second in zip(sizes, sizes[1:], strict=False)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the mean of the last features."""
        mode = poptorch.OverlapMode.OverlapDeviceIterationLoop
        if self.is_overlapped:
            x = poptorch.set_overlap_for_input(x, mode)
        return self.body(x).mean((2, 3))


def draw_recomputation() -> None:
    """Draws speed and memory of recomputing and of stashing, against rows of a micro-batch."""
    rows = [1, 2, 4, 8, 16]
    model, batch = trainer()
    figure, axis = plt.subplots(figsize=(6, 3.5))
    sweep = {"recomputation": ["none", "pipeline"], "micro_batch": rows}
    points = emulator.what_if(model, batch, sweep=sweep, system=SYSTEM).points
    for number, name in enumerate(sweep["recomputation"]):
        mine = points[number * len(rows) : (number + 1) * len(rows)]
        axis.semilogx(
            rows, [p.throughput for p in mine], "-", base=2, color=f"C{number}", label=name
        )
        for count, point in zip(rows, mine, strict=True):
            marker = "x" if point.fits == "no" else "o"
            axis.plot(count, point.throughput, marker, color=f"C{number}")
    axis.set(xlabel="rows of a micro-batch (x: does not fit)", ylabel="rows per second", ylim=0)
    axis.legend(title="recomputation")
    save(figure, "time_recomputation")


def draw_all_reduce() -> None:
    """Draws an all-reduce of 200 MB over pods: in three phases, and as one ring over gateways."""
    num_bytes, pods = 200_000_000, [1, 2, 4]
    per_pod = POD_IPUS // 4
    three = [all_reduce_seconds(num_bytes, count * per_pod, 4) for count in pods]
    gateway = NUMBERS.gateway_bytes_per_second / 4
    ring = [
        2 * ring_seconds(num_bytes, count * per_pod, gateway, NUMBERS.gateway_hop_seconds)
        for count in pods
    ]
    figure, axis = plt.subplots(figsize=(6, 3.5))
    _bars(axis, pods, {"three phases": three, "one ring over all gateways": [three[0], *ring[1:]]})
    axis.set(xlabel="pods of 64 IPUs", ylabel="milliseconds")
    axis.legend()
    save(figure, "time_all_reduce")


def _bars(axis: Any, groups: Sequence[int], values: dict[str, list[float]]) -> None:
    for number, (name, seconds) in enumerate(values.items()):
        places = [index + 0.4 * number for index in range(len(groups))]
        axis.bar(places, [1e3 * value for value in seconds], 0.38, label=name)
    axis.set_xticks([index + 0.2 for index in range(len(groups))], map(str, groups))


def save(figure: Any, name: str) -> None:
    """Writes a picture."""
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=80)
    plt.close(figure)


def main() -> None:
    """Draws all pictures."""
    for draw in (draw_pipelines, draw_ramp, draw_scaling, draw_streaming_memory, draw_input,
                 draw_recomputation, draw_all_reduce):  # fmt: skip
        draw()


if __name__ == "__main__":
    main()

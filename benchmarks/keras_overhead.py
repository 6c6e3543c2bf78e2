"""Compares a loop of `IPUStrategy.run` with the same model in PopTorch, with equal iterations.

All candidates train the same networks on the same batches, in one process; the loop and each other
candidate take turns. The loop reads elements from a `tf.data` iterator, and sends each loss to a
queue that is read afterwards. In PopTorch one call runs all iterations, with tensors in memory or
with those of `poptorch.DataLoader`. The table has medians of wall-clock and CPU time, and the
medians of the ratios within a turn. Run it on a quiet machine. `--csv results/measurements.csv`
records the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import result_files
import tensorflow as tf
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.keras import ipu

ROWS, CLASSES, RATE, MOMENTUM = 32, 10, 0.01, 0.9
# Numbers in a sample, and in each hidden layer.
MODELS = {"small mlp": (64, 64), "mlp": (784, 128)}
LOOP, TENSORS, LOADER = "loop", "PopTorch, tensors", "PopTorch, loader"

Run = Callable[[], object]
Seconds = tuple[float, float]  # wall-clock time, and CPU time of all cores


class Network(nn.Module):
    """Three layers with their loss, for PopTorch."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        return nn.functional.cross_entropy(self.layers(x), labels)


def loop_of_run(inputs: int, width: int, x: np.ndarray, labels: np.ndarray) -> Run:
    """Returns a function that runs a loop over all batches."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    count = len(x) // ROWS
    dataset = tf.data.Dataset.from_tensor_slices((x, labels))
    dataset = dataset.batch(ROWS, drop_remainder=True).repeat().prefetch(16)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((inputs,)),
                keras.layers.Dense(width, activation="relu"),
                keras.layers.Dense(width, activation="relu"),
                keras.layers.Dense(CLASSES),
            ]
        )
        optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
        queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        iterator = iter(dataset)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=True)
    def train(iterator, count):
        for _ in tf.range(count):
            batch, wanted = next(iterator)
            with tf.GradientTape() as tape:
                loss = loss_of(wanted, model(batch, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            queue.enqueue(loss)

    def run() -> object:
        strategy.run(train, args=[iterator, count])
        return queue.dequeue()

    return run


def wrapped(inputs: int, width: int, options: poptorch.Options) -> poptorch.PoplarExecutor:
    """Returns the network as a trainer."""
    network = Network(inputs, width)
    optimizer = poptorch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    return poptorch.trainingModel(network, options, optimizer)


def candidates(name: str, count: int) -> dict[str, Run]:
    """Returns for each candidate a function that runs `count` iterations."""
    inputs, width = MODELS[name]
    generator = np.random.default_rng(0)
    x = generator.random((count * ROWS, inputs), dtype=np.float32)
    labels = generator.integers(CLASSES, size=len(x)).astype(np.int32)
    tensors = torch.from_numpy(x), torch.from_numpy(labels)
    options = poptorch.Options().deviceIterations(count).showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(options, torch.utils.data.TensorDataset(*tensors), ROWS)
    given, loading = (wrapped(inputs, width, options) for _ in range(2))
    return {
        LOOP: loop_of_run(inputs, width, x, labels),
        TENSORS: lambda: given(*tensors),
        LOADER: lambda: [loading(*batch) for batch in loader],
    }


def measure(runs: Mapping[str, Run], rounds: int) -> dict[str, list[Seconds]]:
    """Returns wall-clock and CPU time of each turn of each candidate."""
    for run in runs.values():
        run()
    taken: dict[str, list[Seconds]] = {candidate: [] for candidate in runs}
    for _ in range(rounds):
        for candidate, run in runs.items():
            start = time.perf_counter(), time.process_time()
            run()
            end = time.perf_counter(), time.process_time()
            taken[candidate].append((end[0] - start[0], end[1] - start[1]))
    return taken


def quantities(taken: Mapping[str, list[Seconds]], count: int) -> list[tuple[str, str, float]]:
    """Returns the figures of the loop and another candidate as (quantity, unit, value)."""
    found = []
    for index, kind in enumerate(("time", "CPU time")):
        of_each = {name: [turn[index] for turn in turns] for name, turns in taken.items()}
        for name, turns in of_each.items():
            if name == LOOP and LOADER in of_each:
                continue  # The other candidate's line has it already.
            microseconds = statistics.median(turns) / count * 1e6
            found.append((f"{name}, {kind}", "us of an iteration", microseconds))
        (mine, theirs), other = of_each.values(), list(of_each)[-1]
        ratio = statistics.median(one / another for one, another in zip(mine, theirs, strict=True))
        found.append((f"{LOOP} over {other}", f"ratio of {kind} within a turn", ratio))
    return found


def main() -> None:
    """Prints a table in Markdown, one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--iterations",
        type=int,
        default=1000,
        help="iterations of each measurement, each with a batch of 32 rows",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--csv", type=Path, help="append the figures to this file")
    args = parser.parse_args()
    emulator.install()  # The engine keeps its cores.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    print("| model | figure | unit | |\n|---|---|---|---:|")
    rows = []
    for name in args.models:
        runs = candidates(name, args.iterations)
        # Each one has turns of its own, because the loader leaves the caches full of samples.
        for other in (TENSORS, LOADER):
            pair = {each: runs[each] for each in (LOOP, other)}
            for quantity, unit, value in quantities(measure(pair, args.rounds), args.iterations):
                print(f"| {name} | {quantity} | {unit} | {value:.3g} |", flush=True)
                row = {"subject": "keras loop", "workload": name, "quantity": quantity}
                rows.append({**row, "unit": unit, "value": value})
    if args.csv:
        result_files.append(args.csv, rows)


if __name__ == "__main__":
    main()

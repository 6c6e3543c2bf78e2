"""Compares Keras's `fit` on virtual IPUs with eager Keras and with the same model in PopTorch.

All candidates train the same networks on the same batches, in one process and in turns: eager
Keras, `fit` with 1 and 16 steps per execution, and the wrapped PyTorch model with 16 device
iterations in a loop that computes the accuracy as Keras's metric does. Each turn is one epoch. The
table has medians, and the medians of the ratios within a turn. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from keras import layers
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.keras import ipu

ROWS, STEPS, RATE, MOMENTUM = 32, 16, 0.01, 0.9
SIDE, CLASSES, WIDTH, FILTERS = 28, 10, 128, 8
Epoch = Callable[[], object]


def keras_mlp() -> keras.Model:
    """Returns three dense layers."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Flatten(),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(WIDTH, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def keras_cnn() -> keras.Model:
    """Returns a convolution with batch normalisation, and two dense layers."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(FILTERS, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def torch_mlp() -> nn.Module:
    """Returns the same layers as `keras_mlp` in PyTorch."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )


def torch_cnn() -> nn.Module:
    """Returns the same layers as `keras_cnn` in PyTorch."""
    return nn.Sequential(
        nn.Conv2d(1, FILTERS, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(FILTERS, eps=1e-3, momentum=0.01),
        nn.Flatten(),
        nn.Linear(FILTERS * 13 * 13, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


MODELS = {"mlp": (keras_mlp, torch_mlp), "cnn": (keras_cnn, torch_cnn)}


class WithLoss(nn.Module):
    """A network with its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the loss and the scores."""
        scores = self.network(x)
        return nn.functional.cross_entropy(scores, labels), scores


def keras_epoch(model: keras.Model, steps: int, x: np.ndarray, labels: np.ndarray) -> Epoch:
    """Returns a function that runs an epoch of `fit`."""
    model.compile(
        keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    return lambda: model.fit(x, labels, batch_size=ROWS, verbose=0)


def poptorch_epoch(network: nn.Module, x: np.ndarray, labels: np.ndarray) -> Epoch:
    """Returns a function that runs an epoch over shuffled rows."""
    options = poptorch.Options().deviceIterations(STEPS).showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    training = poptorch.trainingModel(WithLoss(network), options, optimizer)
    dataset = torch.utils.data.TensorDataset(
        torch.as_tensor(x).permute(0, 3, 1, 2).contiguous(), torch.as_tensor(labels)
    )
    loader = poptorch.DataLoader(options, dataset, batch_size=ROWS, shuffle=True)

    def epoch() -> float:
        losses, correct = [], 0
        for images, wanted in loader:
            loss, scores = training(images, wanted)
            losses.append(float(loss.mean()))
            correct += int((scores.argmax(dim=1) == wanted).sum())
        return statistics.mean(losses)

    return epoch


def candidates(name: str, batches: int) -> dict[str, Epoch]:
    """Returns the epoch function of each candidate, by its name."""
    generator = np.random.default_rng(0)
    x = generator.random((batches * ROWS, SIDE, SIDE, 1), dtype=np.float32)
    labels = generator.integers(CLASSES, size=len(x))
    make_keras, make_torch = MODELS[name]
    found = {"eager Keras": keras_epoch(make_keras(), 1, x, labels)}
    for steps in (1, STEPS):
        with ipu.ipu_strategy.IPUStrategy().scope():
            model = make_keras()
        found[f"fit, {steps} steps"] = keras_epoch(model, steps, x, labels)
    found["PopTorch, 16 steps"] = poptorch_epoch(make_torch(), x, labels)
    return found


def measure(name: str, batches: int, rounds: int) -> str:
    """Returns one line of the table."""
    epochs = candidates(name, batches)
    for epoch in epochs.values():
        epoch()
    taken: dict[str, list[float]] = {candidate: [] for candidate in epochs}
    for _ in range(rounds):
        for candidate, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            taken[candidate].append((time.perf_counter() - start) / batches * 1e3)
    eager, one, many, poptorch_loop = taken.values()
    ratios = (_ratio(one, eager), _ratio(many, eager), _ratio(many, poptorch_loop))
    medians = (f"{statistics.median(values):.2f}" for values in taken.values())
    return f"| {name} | {' | '.join(medians)} | {' | '.join(ratios)} |"


def _ratio(mine: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(mine, theirs, strict=True)):.2f}"


def main() -> None:
    """Prints a table in Markdown: milliseconds per batch, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", type=int, default=128, help="batches of 32 rows in an epoch")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    print(
        "| ms a batch | eager Keras | fit, 1 step | fit, 16 steps | PopTorch, 16 | 1 / eager | "
        "16 / eager | 16 / PopTorch |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name in args.models:
        print(measure(name, args.batches, args.rounds), flush=True)


if __name__ == "__main__":
    main()

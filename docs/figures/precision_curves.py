"""Draws the learning curves of the MNIST network in float32 and in several kinds of float16.

Run it: `python docs/figures/precision_curves.py`. It writes `precision_curves.png` beside itself
and prints the table of docs/numerics.md.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import poptorch_emu as poptorch

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "tutorials" / "pipelining"))

from digit_images import train_and_test  # noqa: E402
from mnist_pipeline import Network, strategy  # noqa: E402

MICRO_BATCH, ACCUMULATION, SEED = 8, 8, 42
ROWS = MICRO_BATCH * ACCUMULATION

PLAIN = "float32, plain PyTorch"

Tensors = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """One way to train: its name in the picture, and its dtypes and settings."""

    name: str
    style: str
    is_half: bool = False
    rounds_stochastically: bool = False
    loss_scaling: float = 1.0


KINDS = (
    Kind("float32", "C0-"),
    Kind("float16, rounded to nearest", "C3-", is_half=True),
    Kind("float16, loss scaling 128", "C1:", is_half=True, loss_scaling=128.0),
    Kind("float16, stochastic rounding", "C2-", is_half=True, rounds_stochastically=True),
)


@dataclass
class Curve:
    """Results of one training: the mean loss of each epoch, and the accuracy on the test set."""

    losses: list[float]
    accuracy: float


def batches(data: Tensors, epoch: int) -> Iterator[Tensors]:
    """Yields the rows of one update after another, in an order that depends only on the epoch."""
    generator = torch.Generator().manual_seed(SEED + epoch)
    order = torch.randperm(len(data[1]), generator=generator)
    for start in range(0, len(order) - ROWS + 1, ROWS):
        index = order[start : start + ROWS]
        yield data[0][index], data[1][index]


def train_emulated(model: Network, kind: Kind, data: Tensors, args: argparse.Namespace) -> Curve:
    """Trains on virtual IPUs."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(strategy("pipelined"))
    options.randomSeed(SEED)
    options.showCompilationProgressBar(False)
    options.Precision.enableStochasticRounding(kind.rounds_stochastically)
    dtype = torch.float16 if kind.is_half else torch.float32
    model = model.to(dtype)
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, loss_scaling=kind.loss_scaling
    )
    training = poptorch.trainingModel(model, options, optimizer)
    losses = []
    for epoch in range(args.epochs):
        of_epoch = [training(x.to(dtype), y)[1].float().mean() for x, y in batches(data, epoch)]
        losses.append(torch.stack(of_epoch).mean().item())
    training.destroy()
    return Curve(losses, 0.0)


def train_plain(model: Network, data: Tensors, args: argparse.Namespace) -> Curve:
    """Trains with the ordinary loop of PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    losses = []
    for epoch in range(args.epochs):
        of_epoch = []
        for x, y in batches(data, epoch):
            optimizer.zero_grad()
            _, loss = model(x, y)
            loss.backward()
            optimizer.step()
            of_epoch.append(loss.detach())
        losses.append(torch.stack(of_epoch).mean().item())
    return Curve(losses, 0.0)


def accuracy(model: Network, data: Tensors) -> float:
    """Returns the share of digits that the model recognises, computed in float32."""
    with torch.no_grad():
        return (model.float()(data[0]).argmax(1) == data[1]).float().mean().item()


def draw(curves: dict[str, Curve], styles: dict[str, str], path: Path) -> None:
    """Writes the picture: the losses above, and their distances from plain PyTorch's below."""
    figure, (losses, distances) = plt.subplots(
        2, figsize=(7, 6.5), sharex=True, height_ratios=(3, 2), constrained_layout=True
    )
    for name, curve in curves.items():
        epochs = range(1, len(curve.losses) + 1)
        label = f"{name}: {curve.accuracy:.1%}"
        losses.semilogy(epochs, curve.losses, styles[name], label=label, linewidth=2)
        pairs = zip(curve.losses, curves[PLAIN].losses, strict=True)
        distance = [100 * (loss / plain - 1) for loss, plain in pairs]
        distances.plot(epochs, distance, styles[name], linewidth=2)
    losses.set(ylabel="training loss", title="Precision and learning")
    losses.legend(title="number format: accuracy on the test set")
    distances.set(xlabel="epoch", ylabel="difference from\nplain PyTorch, %")
    for axes in (losses, distances):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def tensors_of(dataset: torch.utils.data.Dataset) -> Tensors:
    """Returns all images and labels of a data set."""
    images, labels = zip(*(dataset[index] for index in range(len(dataset))), strict=True)
    return torch.stack(images), torch.stack(labels)


def main() -> None:
    """Trains in every way and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="MNIST's IDX files; by default scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--output", type=Path, default=FOLDER / "precision_curves.png")
    args = parser.parse_args()
    train, test = (tensors_of(part) for part in train_and_test(args.data_dir))
    torch.manual_seed(SEED)
    start = Network()
    curves, styles = {}, {}
    for kind in KINDS:
        model = copy.deepcopy(start)
        curve = train_emulated(model, kind, train, args)
        curves[kind.name], styles[kind.name] = (
            Curve(curve.losses, accuracy(model, test)),
            kind.style,
        )
    plain = copy.deepcopy(start)
    curve = train_plain(plain, train, args)
    curves[PLAIN], styles[PLAIN] = Curve(curve.losses, accuracy(plain, test)), "k--"
    print("| Numbers | Last training loss | Accuracy on the test set |\n|---|---|---|")
    for name, curve in curves.items():
        print(f"| {name} | {curve.losses[-1]:.4f} | {curve.accuracy:.1%} |")
    draw(curves, styles, args.output)


if __name__ == "__main__":
    main()

"""Trains a small convolutional network on handwritten digits, its blocks on a pipeline of IPUs.

Run it: `python mnist_pipeline.py`, or with `--help` to list the options.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from digit_images import train_and_test
from torch import nn
from tqdm import tqdm

import poptorch_emu as poptorch

# Bars with `disable=None` are drawn only on terminals; a log gets the lines of text.
NUM_STAGES = 4


class Network(nn.Module):
    """Two convolutions and two linear layers, each in its own block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.linear1 = nn.Linear(320, 256)
        self.linear2 = nn.Linear(256, 10)
        self.pool = nn.MaxPool2d(2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None):
        with poptorch.Block("B1"):
            x = torch.relu(self.pool(self.conv1(images)))
        with poptorch.Block("B2"):
            x = torch.relu(self.pool(self.conv2(x))).flatten(1)
        with poptorch.Block("B3"):
            x = torch.relu(self.linear1(x))
        with poptorch.Block("B4"):
            scores = self.linear2(x)
            if labels is None:
                return scores
            return scores, self.loss(scores, labels)


def strategy(name: str) -> poptorch.ShardedExecution | poptorch.PipelinedExecution:
    """Returns the execution strategy: one block in each stage, one stage on each IPU."""
    kind = {"pipelined": poptorch.PipelinedExecution, "sharded": poptorch.ShardedExecution}[name]
    return kind(*(poptorch.Stage(f"B{i + 1}").ipu(i) for i in range(NUM_STAGES)))


def training_options(args: argparse.Namespace) -> poptorch.Options:
    """Returns options for training: several updates in a call, several micro-batches in each."""
    options = poptorch.Options()
    options.deviceIterations(args.device_iterations)
    options.Training.gradientAccumulation(args.gradient_accumulation)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(strategy(args.strategy))
    options.randomSeed(42)
    if args.offload_optimiser:
        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setOptimizerLocation(location)
    if args.profile:
        options.enableProfiling(args.profile_dir)
        options.modelName("mnist_training")
    return options


def inference_options(args: argparse.Namespace) -> poptorch.Options:
    """Returns options for testing: enough micro-batches in a call to fill the pipeline."""
    options = poptorch.Options()
    options.deviceIterations(NUM_STAGES)
    options.setExecutionStrategy(strategy(args.strategy))
    return options


def train(model: nn.Module, dataset: torch.utils.data.Dataset, args: argparse.Namespace) -> None:
    """Trains and prints loss, accuracy and throughput of each epoch."""
    options = training_options(args)
    loader = poptorch.DataLoader(options, dataset, batch_size=args.batch_size, shuffle=True)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    training = poptorch.trainingModel(model, options, optimizer)
    for epoch in range(1, args.epochs + 1):
        losses, correct, seen = [], 0, 0
        start = time.perf_counter()
        with tqdm(loader, desc=f"Epoch {epoch}", unit="step", disable=None) as bar:
            for images, labels in bar:
                scores, loss = training(images, labels)
                losses.append(loss.mean().item())
                correct += int((scores.argmax(dim=1) == labels).sum())
                seen += len(labels)
                bar.set_postfix(loss=f"{losses[-1]:.4f}", accuracy=f"{correct / seen:.1%}")
        rate = seen / (time.perf_counter() - start)
        print(
            f"Epoch {epoch}: loss {sum(losses) / len(losses):.4f}, accuracy {correct / seen:.1%}, "
            f"{rate:.0f} images/s"
        )
    if args.profile:
        print(poptorch.emulator.summary(training))
    training.destroy()
    if args.profile:
        print(f"poptorch-emu view {args.profile_dir}/mnist_training/profile.pop --open")


def test(model: nn.Module, dataset: torch.utils.data.Dataset, args: argparse.Namespace) -> float:
    """Returns the share of images that the model recognises."""
    options = inference_options(args)
    loader = poptorch.DataLoader(options, dataset, batch_size=args.test_batch_size)
    inference = poptorch.inferenceModel(model.eval(), options)
    correct, seen = 0, 0
    for images, labels in tqdm(loader, desc="Test", unit="step", disable=None):
        correct += int((inference(images).argmax(dim=1) == labels).sum())
        seen += len(labels)
    inference.destroy()
    return correct / seen


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of the command line, or of `words`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--device-iterations", type=int, default=2, help="updates in one call")
    parser.add_argument(
        "--gradient-accumulation", type=int, default=8, help="micro-batches in one update"
    )
    parser.add_argument("--test-batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--strategy", choices=("pipelined", "sharded"), default="pipelined")
    parser.add_argument(
        "--offload-optimiser", action="store_true", help="optimiser state in streaming memory"
    )
    parser.add_argument("--profile", action="store_true", help="write a profile of the training")
    parser.add_argument("--profile-dir", default="profile", help="where the profile goes")
    parser.add_argument("--debug", action="store_true", help="log what the package does")
    parser.add_argument("--data-dir", help="folder with MNIST's IDX files; else scikit-learn's")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Trains the model, then tests it."""
    args = parse_arguments(words)
    if args.debug:
        poptorch.setLogLevel("DEBUG")
    torch.manual_seed(42)
    train_set, test_set = train_and_test(args.data_dir)
    model = Network()
    train(model, train_set, args)
    print(f"Accuracy on the test set: {test(model, test_set, args):.1%}")


if __name__ == "__main__":
    main()

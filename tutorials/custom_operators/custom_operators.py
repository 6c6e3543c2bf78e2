"""Custom operators: the same model with operators written in C++ and in Python.

Builds custom_operators.cpp (about half a minute the first time), trains a small model that uses its
operators, and trains it again with operators registered in Python:

    python tutorials/custom_operators/custom_operators.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.utils import cpp_extension

import poptorch_emu as poptorch
from poptorch_emu.emulator import register_custom_op

SOURCE = Path(__file__).with_name("custom_operators.cpp")
CPP_DOMAIN = "tutorial.ops"
PYTHON_DOMAIN = "tutorial.python"


def build(folder: str | None = None) -> None:
    """Compiles the C++ operators and loads them."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    cpp_extension.load(
        "tutorial_ops",
        [str(SOURCE)],
        extra_cflags=["-O2", "-std=c++20"],
        build_directory=folder,
        is_python_module=False,
    )


def register_in_python() -> None:
    """Registers operators of the same names, written with PyTorch's operations."""
    register_custom_op(
        "Cube",
        PYTHON_DOMAIN,
        lambda x: x * x * x,
        backward=lambda gradient, x: 3 * gradient * x * x,
    )
    register_custom_op(
        "LeakyRelu", PYTHON_DOMAIN, lambda x, alpha: torch.where(x > 0, x, alpha * x)
    )
    register_custom_op("VectorScalarMultiply", PYTHON_DOMAIN, torch.mul)


class Model(torch.nn.Module):
    """A layer, then cube(scale * leaky_relu(x)); returns the output and the loss."""

    def __init__(self, domain: str) -> None:
        super().__init__()
        self.domain = domain
        self.layer = torch.nn.Linear(4, 3)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layer(x)
        (x,) = poptorch.custom_op(
            [x], "LeakyRelu", self.domain, 1, example_outputs=[x], attributes={"alpha": 0.1}
        )
        (x,) = poptorch.custom_op(
            [x, self.scale], "VectorScalarMultiply", self.domain, 1, example_outputs=[x]
        )
        (x,) = poptorch.custom_op([x], "Cube", self.domain, 1, example_outputs=[x])
        return x, torch.nn.functional.mse_loss(x, target)


def train(domain: str, num_steps: int) -> list[float]:
    """Returns the loss of each step."""
    torch.manual_seed(0)
    model = Model(domain)
    inputs = torch.randn(16, 4)
    targets = torch.randn(16, 3)
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.02)
    training = poptorch.trainingModel(model, options, optimizer)
    return [training(inputs, targets)[1].item() for _ in range(num_steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--build-folder", help="where the library is built")
    arguments = parser.parse_args()
    build(arguments.build_folder)
    register_in_python()
    for domain in (CPP_DOMAIN, PYTHON_DOMAIN):
        losses = train(domain, arguments.steps)
        print(f"{domain}: loss {losses[0]:.4f} after 1 step, {losses[-1]:.4f} after {len(losses)}")


if __name__ == "__main__":
    main()

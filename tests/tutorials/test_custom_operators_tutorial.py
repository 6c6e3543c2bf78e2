"""The tutorial on custom operators: its Python part in process, the whole as a user runs it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "tutorials" / "custom_operators" / "custom_operators.py"


def plain_losses(num_steps: int) -> list[float]:
    """Trains the tutorial's model with PyTorch's own operations."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    scale = torch.nn.Parameter(torch.tensor(1.5))
    inputs, targets = torch.randn(16, 4), torch.randn(16, 3)
    optimizer = torch.optim.SGD([*layer.parameters(), scale], lr=0.02)
    losses = []
    for _ in range(num_steps):
        y = (torch.nn.functional.leaky_relu(layer(inputs), 0.1) * scale) ** 3
        loss = torch.nn.functional.mse_loss(y, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_operators_when_registered_in_python_then_training_equals_plain_pytorch() -> None:
    spec = importlib.util.spec_from_file_location("custom_operators_tutorial", SCRIPT)
    assert spec is not None and spec.loader is not None
    tutorial = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tutorial)
    tutorial.register_in_python()
    losses = tutorial.train(tutorial.PYTHON_DOMAIN, 20)
    assert losses == pytest.approx(plain_losses(20), rel=1e-5)


@pytest.mark.slow
def test_script_when_run_then_both_languages_train_alike(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--build-folder", str(tmp_path / "build")],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss ([\d.]+) after 1 step, ([\d.]+) after 50", done.stdout)
    expected = plain_losses(50)
    assert len(losses) == 2, done.stdout
    for first, last in losses:
        assert float(first) == pytest.approx(expected[0], abs=1e-4)
        assert float(last) == pytest.approx(expected[-1], abs=1e-4)

"""The tutorial on custom operators as a script: both languages train like plain PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.forked_programs import run_forked

SCRIPT = Path(__file__).parents[2] / "tutorials" / "custom_operators" / "custom_operators.py"
NUM_STEPS = 50


def plain_losses() -> list[float]:
    """Trains the tutorial's model with PyTorch's own operations."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    scale = torch.nn.Parameter(torch.tensor(1.5))
    inputs, targets = torch.randn(16, 4), torch.randn(16, 3)
    optimizer = torch.optim.SGD([*layer.parameters(), scale], lr=0.02)
    losses = []
    for _ in range(NUM_STEPS):
        y = (torch.nn.functional.leaky_relu(layer(inputs), 0.1) * scale) ** 3
        loss = torch.nn.functional.mse_loss(y, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_script_when_run_then_operators_train_as_plain_pytorch(tmp_path: Path) -> None:
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    source = SCRIPT.with_suffix(".cpp")
    (tmp_path / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    done = run_forked([SCRIPT.name], {"MPLBACKEND": "Agg"}, tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"tutorial\.(\w+): loss ([\d.]+) after 1 step, ([\d.]+) after 50", done.stdout
    )
    assert [language for language, *_ in found] == ["python", "ops"], done.stdout
    expected = plain_losses()
    for _, first, last in found:
        assert float(first) == pytest.approx(expected[0], abs=1e-4)
        assert float(last) == pytest.approx(expected[-1], abs=1e-4)

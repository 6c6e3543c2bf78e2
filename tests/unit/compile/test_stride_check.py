"""At level DEBUG, a compilation logs the strides that were captured wrongly."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.trace.fakes import kernel_strides

aten = torch.ops.aten
_SAYING = "but PyTorch's kernel for the CPU returns [192, 1, 32, 8]"


class Images(nn.Module):
    """Channels-last images, with most kinds of operations on them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(8, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.group_norm, self.batch_norm = nn.GroupNorm(2, 8), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.conv(self.linear(x).permute(0, 3, 1, 2)).roll(1, 1)
        x = self.batch_norm(self.group_norm(x))
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return x, poptorch.identity_loss(x.square(), "mean")


def warnings_of_a_compilation(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    training = poptorch.trainingModel(Images())
    poptorch.setLogLevel(level)
    try:
        training.compile(torch.randn(2, 6, 4, 8))
    finally:
        poptorch.setLogLevel("WARN")
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_strides_when_they_are_the_kernels_then_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings_of_a_compilation(caplog, "DEBUG") == []


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 1), ("WARN", 0)])
def test_strides_when_a_rule_is_wrong_then_the_debugging_log_names_the_operator(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, level: str, count: int
) -> None:
    monkeypatch.setitem(kernel_strides._RULES, aten.roll.default, kernel_strides._in_order)
    found = warnings_of_a_compilation(caplog, level)
    assert len([text for text in found if _SAYING in text and "aten.roll" in text]) == count

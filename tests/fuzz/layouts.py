"""Compares random image models, whose parts change and read the memory order, with PyTorch."""

from __future__ import annotations

import copy
import random

import torch
from fuzz.layout_parts import CHANNELS, PARTS, SIDE
from support.helpers import Batch, Setting, plain_step
from torch import nn

import poptorch_emu as poptorch

_LINEAR_RATE = 0.05
# Norms whose memory order in PyTorch depends on the device, which the parts in `READERS` would see.
NORMS = {"group norm", "group norm of rows"}
READERS = {"asked", "in memory"}


class ImageModel(nn.Module):
    """A sequence of parts, to some of whose inputs an earlier value is added."""

    def __init__(self, choice: random.Random) -> None:
        super().__init__()
        self.names = ["linear", *choice.choices(list(PARTS), k=choice.randint(2, 6))]
        self.parts = nn.ModuleList(PARTS[name](choice) for name in self.names)
        self._adds = [choice.random() < 0.2 for _ in self.names]

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x
        for part, adds in zip(self.parts, self._adds, strict=True):
            x = part(x) + first if adds else part(x)
        return x, nn.functional.mse_loss(x, target)


def check_layouts(seed: int) -> str:
    """Compares outputs and a few updates with the plain model, micro-batch by micro-batch."""
    choice = random.Random(seed)
    torch.manual_seed(seed)
    model = ImageModel(choice)
    if choice.random() < 0.2 and "conv of volumes" not in model.names:
        model = model.to(memory_format=torch.channels_last)
    setting = Setting("sharded", choice.choice([1, 1, 2, 3]), choice.choice([1, 1, 2]))
    rows = choice.randint(2, 3)
    _compare_inference(copy.deepcopy(model), setting, rows)
    _compare_training(model, setting, rows)
    return f"{model.names} {setting} {rows}"


def _batch(setting: Setting, rows: int) -> Batch:
    shape = (rows * setting.num_micro_batches, CHANNELS, SIDE, SIDE)
    return torch.randn(shape), torch.randn(shape)


def _plain(model: ImageModel) -> ImageModel:
    """Returns a copy with contiguous weights, as the device has them."""
    return copy.deepcopy(model).to(memory_format=torch.contiguous_format)


def _compare_inference(model: ImageModel, setting: Setting, rows: int) -> None:
    setting = Setting("sharded", 1, setting.num_micro_batches)
    plain = _plain(model).eval()
    batch = _batch(setting, rows)
    output, _ = poptorch.inferenceModel(model.eval(), setting.options())(*batch)
    with torch.no_grad():
        pieces = zip(*(value.split(rows) for value in batch), strict=True)
        expected = torch.cat([plain(*piece)[0] for piece in pieces])
    _assert_close("the output", output, expected)


def _compare_training(model: ImageModel, setting: Setting, rows: int) -> None:
    plain = _plain(model)
    optimizer = torch.optim.SGD(plain.parameters(), _LINEAR_RATE)
    ours = poptorch.optim.SGD(model.parameters(), _LINEAR_RATE)
    training = poptorch.trainingModel(model, setting.options(), ours)
    before = copy.deepcopy(plain.state_dict())
    for _ in range(2):
        batch = _batch(setting, rows)
        losses = training(*batch)[1]
        expected = plain_step(plain, optimizer, batch, setting)
        _assert_close("the loss", losses.reshape(-1), expected)
    training.destroy()
    for (name, value), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        # The test compares updates, because an update may be small compared with its weight.
        _assert_close(name, other.detach() - before[name], value.detach() - before[name])


def _assert_close(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual - expected).abs().max().item()
    scale = expected.abs().max().item()
    assert error <= 2e-3 * scale + 2e-6, f"{what} is off by {error}, of {scale}"

"""Digits whose loading takes time, as if they came from a disk and were decoded."""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class SlowDigits(Dataset):
    """Pictures of 64 pixels and their labels; each takes `seconds` to load."""

    def __init__(self, count: int, seconds: float) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.data[:count], dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target[:count])
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return self.images[index], self.labels[index]

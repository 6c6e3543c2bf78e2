"""Measures compilations of the tutorial's network, and of BERT-base's encoder with a loss."""

from __future__ import annotations

import time

import torch
from models import CASES
from torch import nn

import poptorch_emu as poptorch


class BertLike(nn.Module):
    """Twelve encoder layers of width 768 with embeddings and a head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30522, 768)
        self.positions = nn.Embedding(512, 768)
        self.norm = nn.LayerNorm(768)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(768, 12, 3072, 0.1, "gelu", batch_first=True)
            for _ in range(12)
        )
        self.head = nn.Linear(768, 30522)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def compile_seconds(model: nn.Module, *inputs: torch.Tensor, accumulation: int = 1) -> float:
    """Returns the wall-clock time of one compilation for training, in seconds."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    training = poptorch.trainingModel(model, options, optimizer)
    start = time.perf_counter()
    training.compile(*inputs)
    return time.perf_counter() - start


def main() -> None:
    """Prints both times; the first one includes lazy imports of PyTorch."""
    case = CASES["mnist"]
    for attempt in ("first", "second"):
        batch = case.batch(case.rows * 8)
        print(f"MNIST, {attempt}: {compile_seconds(case.make(), *batch, accumulation=8):.2f} s")
    tokens = torch.randint(30522, (1, 128))
    print(f"BERT-base, batch 1, sequence 128: {compile_seconds(BertLike(), tokens, tokens):.2f} s")


if __name__ == "__main__":
    main()

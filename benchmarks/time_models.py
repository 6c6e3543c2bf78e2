"""Further models behind published speeds; the models of `fidelity_models.py` are used, too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import poptorch_emu as poptorch


class LoadingTutorial(nn.Module):
    """The small net of the tutorial about loading data."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 12, 5),
            nn.GroupNorm(3, 12), nn.ReLU(), nn.Flatten(), nn.Linear(41_772, 100), nn.ReLU(),
            nn.Linear(100, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        out = self.body(x)
        return out, F.cross_entropy(out, labels)


class PipelinedMnist(nn.Module):
    """Two convolutions and two linear layers, each on its own IPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
                nn.Sequential(nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
                nn.Sequential(nn.Linear(320, 256), nn.ReLU()),
                nn.Linear(256, 10),
            ]
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{ipu}", ipu_id=ipu):
                x = layer(x)
                if ipu == 3:
                    return x, F.cross_entropy(x, labels)
        raise AssertionError("the last layer returns")


class Dlrm(nn.Module):
    """DLRM: sparse features of four chunks from one table, pairwise products, two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(312_500, 32)
        self.bottom = _perceptron(13, 512, 256, 128)
        self.top = _perceptron(479, 1024, 1024, 512, 256, 1)

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, labels: torch.Tensor | None = None
    ):
        bottom = self.bottom(dense)
        features = self.table(sparse).flatten(2)
        both = torch.cat([bottom[:, None], features], 1)
        pairs = both @ both.transpose(1, 2)
        # 351 of the 729 products, as many as there are pairs.
        chosen = pairs.flatten(1)[:, :351]
        out = self.top(torch.cat([bottom, chosen], 1)).flatten()
        return out if labels is None else F.binary_cross_entropy_with_logits(out, labels)


def _perceptron(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for first, second in zip(widths, widths[1:], strict=False):
        parts += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class AnswersOfBertBase(nn.Module):
    """BERT-Base on one IPU, for inference."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(768, 2)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor):
        x = self.encoder.encode(ids, kinds, mask)
        with poptorch.Block("head", ipu_id=0):
            return self.head(x)

"""A model of real size for the tutorial: an encoder of twelve Transformer layers, for estimates.

Its weights are on PyTorch's meta device: they have shapes, but take no memory. The program
`python encoder_model.py` opens the laboratory of this model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

import poptorch_emu as poptorch

WIDTH, LENGTH, ROWS = 512, 128, 8


class Encoder(nn.Module):
    """Layers of a Transformer; `layers_of_ipu` says how many of them each IPU has."""

    def __init__(self, layers_of_ipu: Sequence[int]) -> None:
        super().__init__()
        self.ipus = [ipu for ipu, count in enumerate(layers_of_ipu) for _ in range(count)]
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
            for _ in self.ipus
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for index, (layer, ipu) in enumerate(zip(self.layers, self.ipus)):
            with poptorch.Block(f"layer{index}", ipu_id=ipu):
                x = layer(x)
                if index + 1 == len(self.layers):
                    return x, poptorch.identity_loss((x * x).mean(), "none")


def encoder(
    layers_of_ipu: Sequence[int] = (3, 3, 3, 3),
    accumulation: int = 16,
    kind: type = poptorch.PipelinedExecution,
    change: Callable[[poptorch.Options], None] | None = None,
) -> tuple[poptorch.PoplarExecutor, torch.Tensor]:
    """Returns a wrapped encoder, and the batch of a call."""
    options = poptorch.Options().showCompilationProgressBar(False).modelName("encoder")
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(kind())
    if change is not None:
        change(options)
    with torch.device("meta"):
        model = Encoder(layers_of_ipu).half()
        rows = ROWS * accumulation * options.device_iterations
        batch = torch.empty(rows, LENGTH, WIDTH, dtype=torch.half)
    optimizer = poptorch.optim.AdamW(model.parameters(), accum_type=torch.half)
    return poptorch.trainingModel(model, options, optimizer), batch


if __name__ == "__main__":  # A laboratory that plans each choice, until Ctrl-C.
    with poptorch.emulator.live_lab(*encoder(), system="bow-pod16", exercises=True) as laboratory:
        print(laboratory)
        laboratory.wait()

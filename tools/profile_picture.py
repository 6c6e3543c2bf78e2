"""Draws `docs/images/profile_page.png`: a page of a pipelined model, in a headless browser.

    python tools/profile_picture.py [BROWSER]

It needs the extra `browser`, and a chromium; the picture shows the timeline in its light theme.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

import poptorch_emu as poptorch
from poptorch_emu import emulator

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "profile_page.png"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# The last stage has one layer less, since the loss is there too.
IPU_OF_LAYER = (0, 0, 1, 1, 2, 2, 2, 3)
ACCUMULATION, ROWS, WIDTH = 12, 256, 1024


class Layer(torch.nn.Module):
    """The second half of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` with what the layer adds."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Mixer(torch.nn.Module):
    """Layers over four IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            poptorch.BeginBlock(Layer(), f"layer{number}", ipu_id=ipu)
            for number, ipu in enumerate(IPU_OF_LAYER)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the last layer's result and the loss."""
        for layer in self.layers:
            x = layer(x)
        return x, torch.nn.functional.mse_loss(x, y)


def write_page(path: Path) -> None:
    """Writes the page of a model of which nothing runs but shapes."""
    options = poptorch.Options().modelName("mixer-8").showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    with torch.device("meta"):
        model = Mixer().half()
        batch = torch.empty(2, ACCUMULATION * ROWS, WIDTH, dtype=torch.half)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.001)
    emulator.page(poptorch.trainingModel(model, options, optimizer), path, *batch)


def main() -> None:
    """Draws the picture."""
    browser = next(filter(None, map(shutil.which, (*sys.argv[1:], *BROWSERS))), None)
    if browser is None:
        sys.exit(f"found none of {', '.join(BROWSERS)}: install one, or name yours")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "page.html"
        write_page(path)
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.click("#tab-timeline")
        page.wait_for_timeout(300)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURE, full_page=False)
        started.close()


if __name__ == "__main__":
    main()

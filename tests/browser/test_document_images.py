"""The pictures in `docs/images` are those of today's page.

`pytest tests/browser/test_document_images.py --update-golden` draws them anew. A picture is
compared by the mean colours of its fields, each of which may differ a little. The test finds a
missing bar, but ignores other fonts or a moved digit.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
# For each picture: the model, the panel of the page, and the height of the window.
PICTURES = {
    "profile_page": ("mixer", "timeline", 720),
    "encoder_summary": ("encoder", "summary", 860),
    "encoder_timeline": ("encoder", "timeline", 620),
    "encoder_memory": ("encoder", "memory", 700),
    "encoder_operations": ("encoder", "operations", 720),
}
# Number of fields of a picture in each direction, and the allowed difference of the mean colour of
# a field, of 255. If a picture moves by a pixel, its fields differ by up to 6.
FIELDS, TOLERANCE = 24, 12.0

# The last stage has one layer less, because it also computes the loss.
IPU_OF_LAYER = (0, 0, 1, 1, 2, 2, 2, 3)
ACCUMULATION, ROWS, WIDTH = 12, 256, 1024


class Layer(torch.nn.Module):
    """The second half of a transformer's layer: a feed-forward network and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
        for layer in self.layers:
            x = layer(x)
        return x, torch.nn.functional.mse_loss(x, y)


def mixer() -> Iterator[Any]:
    """Yields a wrapped model that only computes shapes, and its inputs."""
    options = poptorch.Options().modelName("mixer-8").showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    with torch.device("meta"):
        model = Mixer().half()
        batch = torch.empty(2, ACCUMULATION * ROWS, WIDTH, dtype=torch.half)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.001)
    yield poptorch.trainingModel(model, options, optimizer)
    yield from batch


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns the page of each model; the encoder is the uneven one of the pipelining tutorial."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tutorials" / "pipelining")
        encoder = importlib.import_module("encoder_model").encoder((6, 2, 2, 2))
    models = {"mixer": (tuple(mixer()), None), "encoder": (encoder, "bow-pod16")}
    return {
        name: emulator.page(*model, path=folder / f"{name}.html", system=system)
        for name, (model, system) in models.items()
    }


def largest_difference(found: np.ndarray, kept: np.ndarray) -> float:
    """Returns the largest difference between the mean colours of a field, of 255."""
    return float(np.abs(fields(found) - fields(kept)).max())


def fields(picture: np.ndarray) -> np.ndarray:
    """Returns the mean colour of each field of a picture, from 0 to 255."""
    rows = np.array_split(picture[..., :3], FIELDS)
    return np.array([
        [field.mean(axis=(0, 1)) for field in np.array_split(row, FIELDS, axis=1)] for row in rows
    ])  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_picture_then_is_that_of_todays_page(
    name: str, pages: dict[str, Path], browser: Any, request: pytest.FixtureRequest
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model, panel, height = PICTURES[name]
    page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
    page.goto(pages[model].as_uri())
    page.wait_for_selector("html[data-ready]")
    page.click(f"#tab-{panel}")
    page.wait_for_timeout(400)
    drawn = page.screenshot()
    page.close()
    path = IMAGES / f"{name}.png"
    if request.config.getoption("--update-golden"):
        path.write_bytes(drawn)
        return
    found = 255 * pyplot.imread(io.BytesIO(drawn), format="png")
    kept = 255 * pyplot.imread(path)
    assert found.shape[:2] == kept.shape[:2], f"{path.name} has another size: --update-golden"
    difference = largest_difference(found, kept)
    assert difference < TOLERANCE, f"{path.name} is not today's page: --update-golden draws it"


@pytest.mark.parametrize("name", PICTURES)
def test_picture_when_one_place_is_empty_then_is_another_and_when_moved_by_a_pixel_not(
    name: str,
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    kept = 255 * pyplot.imread(IMAGES / f"{name}.png")
    height, width = (size // FIELDS for size in kept.shape[:2])
    darkest = np.unravel_index(fields(kept).sum(axis=-1).argmin(), (FIELDS, FIELDS))
    top, left = darkest[0] * height, darkest[1] * width
    emptied = kept.copy()
    emptied[top : top + height, left : left + width] = 255
    assert largest_difference(emptied, kept) > TOLERANCE
    for axis in (0, 1):
        assert largest_difference(np.roll(kept, 1, axis), kept) < TOLERANCE


def test_pictures_then_each_is_made_here_and_shown_in_a_document() -> None:
    assert {path.stem for path in IMAGES.glob("*.png")} == set(PICTURES)
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tutorials/*/*.py"))
    ]
    for name in PICTURES:
        assert any(f"docs/images/{name}.png" in text for text in texts), name

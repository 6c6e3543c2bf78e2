"""The values on the fullest tile add up to the memory of the tile, part by part."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.random_plans import built, random_case
from torch.nn.functional import scaled_dot_product_attention

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.config import CompileConfig
from poptorch_emu.emulator.estimates import planner_of
from poptorch_emu.machine.tile_memory import IpuMemory, TileMemory
from poptorch_emu.plan.tiles.tile_values import UNEVEN, TileValue, fullest_tiles
from poptorch_emu.report.page.page_content import PageContent
from poptorch_emu.report.page.view_model import memory_view

pytestmark = pytest.mark.feature("emulator.tile_memory", fidelity="modelled")

Found = list[tuple[IpuMemory, tuple[TileValue, ...]]]


def found_in(model: Any, *inputs: torch.Tensor) -> tuple[TileMemory, Found]:
    """Returns the memory of the tiles and the values on each fullest tile."""
    planned = planner_of(model, inputs, {}).plan()
    tiles = planned.tiles
    values = fullest_tiles(planned.inventory, planned.memory, tiles)
    return tiles, [(memory, values[memory.ipu]) for memory in tiles.ipus]


def check_sums(tiles: TileMemory, found: Found) -> None:
    for memory, values in found:
        parts: Counter[str] = Counter()
        of_ipu: Counter[str] = Counter()
        for value in values:
            parts[value.part] += value.tile_bytes
            of_ipu[value.part] += value.ipu_bytes or 0
        assert all(value.tile_bytes >= 0 for value in values)
        assert sum(parts.values()) == tiles.largest_bytes(memory)
        assert parts.pop(UNEVEN) == tiles.largest_bytes(memory) - tiles.mean_bytes(memory)
        assert parts == Counter(tiles.parts(memory)) + Counter()
        for name, num_bytes in memory.always_live:
            assert of_ipu[name] == pytest.approx(num_bytes, abs=len(values))
        assert of_ipu["live at the peak"] == pytest.approx(memory.peak.num_bytes, abs=len(values))


@pytest.mark.parametrize("seed", range(6))
def test_values_of_a_random_pipeline_then_add_up_and_name_each_parameter(seed: int) -> None:
    model, batch = built(random_case(seed))
    tiles, found = found_in(model, batch)
    check_sums(tiles, found)
    named = {
        value.name: (value.ipu_bytes, value.block)
        for _, values in found
        for value in values
        if value.part == "weight"
    }
    sizes = {name: weight.numel() * 4 for name, weight in model.model.named_parameters()}
    on_chip = sum(size for memory, _ in found for part, size in memory.always_live
                  if part == "weight")  # fmt: skip
    assert sum(size for size, _ in named.values()) == on_chip
    for name, (size, block) in named.items():
        if name in sizes:
            assert block == f"layer{name.split('.')[1]}"
            assert size <= sizes[name]  # Replicas may divide it.


class Attention(torch.nn.Module):
    """Has values that exist only within an operation, and a loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("attention", ipu_id=0):
            x = scaled_dot_product_attention(x, x, x)
        with poptorch.Block("loop", ipu_id=0):
            return poptorch.for_loop(3, lambda y: [torch.tanh(y @ y.mT) @ y], [x])[0]


def test_values_of_attention_and_a_loop_then_add_up() -> None:
    tiles, found = found_in(poptorch.inferenceModel(Attention()), torch.randn(2, 4, 64, 16))
    check_sums(tiles, found)
    ((_, values),) = found
    assert any(value.name.startswith("within ") for value in values)


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("product", ipu_id=0):
            return x @ y


def test_values_at_the_peak_of_a_product_then_are_its_arguments_and_its_result() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(Product(), options)
    _, ((_, values),) = found_in(model, torch.randn(512, 256), torch.randn(256, 128))
    live = {(v.ipu_bytes, v.block) for v in values if v.part == "live at the peak"}
    # The batch is divided into one micro-batch.
    assert live == {(512 * 256 * 4, ""), (256 * 128 * 4, ""), (512 * 128 * 4, "product")}


def test_page_then_has_the_values_on_the_fullest_tile() -> None:
    model, batch = built(random_case(1))
    tiles, found = found_in(model, batch)
    fullest = {memory.ipu: values for memory, values in found}
    view = memory_view(PageContent("model", CompileConfig(True), tiles=tiles, fullest=fullest))
    shown = emulator.tile_memory(model, batch)
    for memory, ipu in zip(shown.ipus, view["ipus"], strict=True):
        columns = ipu["fullest_tile"]
        assert columns["name"] == [value.name for value in fullest[memory.ipu]]
        assert sum(columns["tile_bytes"]) == ipu["fullest_tile_bytes"]
        assert sum(columns["tile_bytes"]) == shown.largest_bytes(memory)

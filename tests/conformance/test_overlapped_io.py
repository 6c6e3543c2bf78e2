"""Overlapped input and output: semantics §11. The annotations themselves are identities."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content, Store

pytestmark = pytest.mark.feature("set_overlap_for_input / output", fidelity="modelled")

LOOP = poptorch.OverlapMode.OverlapDeviceIterationLoop
OFF = poptorch.OverlapMode.NoOverlap
overlap_input, overlap_output = poptorch.set_overlap_for_input, poptorch.set_overlap_for_output


def plain(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(overlap_input(x, LOOP) + 1, LOOP)


def off(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(overlap_input(x, OFF) + 1, OFF)


def input_used_twice(x: torch.Tensor) -> torch.Tensor:
    return overlap_input(x, LOOP) + x


def not_an_input(x: torch.Tensor) -> torch.Tensor:
    return overlap_input(x + 1, LOOP) * 2


def output_used(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = overlap_output(x + 1, LOOP)
    return y, y * 2


def not_an_output(x: torch.Tensor) -> torch.Tensor:
    return overlap_output(x + 1, LOOP) * 2


def returned_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = overlap_output(x + 1, LOOP)
    return y, y


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def run(
    function: Callable[[torch.Tensor], object],
    *,
    is_pipelined: bool = False,
    num_io_tiles: int = 32,
    output_mode: poptorch.OutputMode = poptorch.OutputMode.All,
) -> object:
    options = poptorch.Options().deviceIterations(2).showCompilationProgressBar(False)
    options.outputMode(output_mode)
    if not is_pipelined:
        options.setExecutionStrategy(poptorch.ShardedExecution())
    if num_io_tiles:
        options.TensorLocations.numIOTiles(num_io_tiles)
    return poptorch.inferenceModel(Model(function), options)(torch.arange(4.0))


def test_overlap_when_all_is_right_then_changes_nothing() -> None:
    assert torch.equal(run(plain), torch.arange(4.0) + 1)


def test_overlap_when_output_mode_is_sum_then_is_allowed() -> None:
    assert torch.equal(run(plain, output_mode=poptorch.OutputMode.Sum), torch.tensor([4.0, 6.0]))


def test_overlap_when_switched_off_then_nothing_is_asked() -> None:
    result = run(off, is_pipelined=True, num_io_tiles=0, output_mode=poptorch.OutputMode.Final)
    assert torch.equal(result, torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            {"is_pipelined": True},
            "Overlapped IO is not supported with poptorch.PipelinedExecution.*"
            "poptorch.ShardedExecution",
        ),
        (
            {"num_io_tiles": 0},
            r"No IO tiles allocated.*poptorch.Options\(\).TensorLocations.numIOTiles",
        ),
        (
            {"output_mode": poptorch.OutputMode.Final},
            "Unsupported output mode for overlapped IO.*poptorch.OutputMode.All.*"
            "poptorch.OutputMode.Sum",
        ),
    ],
    ids=["pipelined", "no I/O tiles", "output mode"],
)
def test_overlap_when_options_do_not_allow_it_then_raises(setting, text: str) -> None:
    with pytest.raises(poptorch.Error, match=text):
        run(plain, **setting)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            input_used_twice,
            "poptorch.set_overlap_for_input must be the only op.*not the case for input 0",
        ),
        (not_an_input, "poptorch.set_overlap_for_input applied on a node.*not a tensor input"),
        (output_used, "poptorch.set_overlap_for_output must be the last op"),
        (not_an_output, "poptorch.set_overlap_for_output applied on a node.*not a tensor output"),
        (returned_twice, "poptorch.set_overlap_for_output cannot be used.*returned twice"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_annotation_when_misplaced_then_raises(function, text: str) -> None:
    with pytest.raises(poptorch.Error, match=text):
        run(function)


class TwoStages(torch.nn.Module):
    """Reads one input on each IPU; the second is not annotated."""

    def __init__(self, mode: poptorch.OverlapMode) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = self.first(overlap_input(x, self.mode))
        with poptorch.Block("second", ipu_id=1):
            x = self.second(x) * y
            return overlap_output(x.clone(), self.mode), poptorch.identity_loss(x, "sum")


def compiled(mode: poptorch.OverlapMode, *, is_training: bool, cache_dir: str | None = None):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.All).setExecutionStrategy(poptorch.ShardedExecution())
    options.TensorLocations.numIOTiles(32)
    options.enableExecutableCaching(cache_dir)
    model = TwoStages(mode)
    if is_training:
        options.Training.gradientAccumulation(3)
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = poptorch.trainingModel(model, options, optimizer)
    else:
        wrapped = poptorch.inferenceModel(model, options.deviceIterations(3))
    wrapped.compile(torch.randn(3, 3), torch.randn(3, 3))
    return wrapped


def rows(model) -> list[list[str]]:
    """Returns the cells of each row of the grid, by slot, under its label."""
    lines = str(emulator.schedule(model)).split("\n\n")[0].splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", lines[0])]
    ends = [*starts[1:], None]
    return [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in lines[2:]]


ACCUMULATION = poptorch.OverlapMode.OverlapAccumulationLoop


@pytest.mark.parametrize(
    ("mode", "is_training", "ipu_0", "ipu_1"),
    [
        # A micro-batch takes three slots: 0F0, 1F0|1B0, 0B0.
        (LOOP, True, {0: "0I1", 3: "0I2", 6: "0I0+"}, {1: "0O2-", 4: "0O0", 7: "0O1"}),
        (ACCUMULATION, True, {0: "0I1", 3: "0I2"}, {4: "0O0", 7: "0O1"}),
        (LOOP, False, {0: "0I1", 2: "0I2", 4: "0I0+"}, {1: "0O2-", 3: "0O0", 5: "0O1"}),
        # Inference accumulates nothing, so nothing overlaps within the loop.
        (ACCUMULATION, False, {}, {}),
        (OFF, True, {}, {}),
    ],
)
def test_schedule_when_input_and_output_overlap_then_shows_what_crosses_meanwhile(
    mode: poptorch.OverlapMode, is_training: bool, ipu_0: dict[int, str], ipu_1: dict[int, str]
) -> None:
    found = rows(compiled(mode, is_training=is_training))
    crossing = {
        label: {slot: text for slot, text in enumerate(cells) if text}
        for label, *cells in found
        if label.endswith("I/O")
    }
    expected = {"IPU 0 I/O": ipu_0, "IPU 1 I/O": ipu_1}
    assert crossing == {label: cells for label, cells in expected.items() if cells}
    assert [label for label, *_ in found if not label.endswith("I/O")] == ["IPU 0", "IPU 1"]


@pytest.mark.parametrize("mode", [LOOP, ACCUMULATION, OFF])
def test_memory_when_input_overlaps_then_another_buffer_is_on_the_io_tiles(
    mode: poptorch.OverlapMode,
) -> None:
    plan = emulator.memory(compiled(mode, is_training=True))
    held = {(h.content, h.name): (h.copies, h.store) for h in plan.holdings}
    expected = (1, Store.ON_CHIP) if mode is OFF else (2, Store.IO_TILES)
    assert held[Content.INPUT, "input 0"] == held[Content.OUTPUT, "output 0"] == expected
    assert held[Content.INPUT, "input 1"] == held[Content.OUTPUT, "output 1"] == (1, Store.ON_CHIP)


def test_plans_when_read_from_the_cache_then_are_those_of_the_compilation(tmp_path) -> None:
    first = compiled(LOOP, is_training=True, cache_dir=str(tmp_path))
    second = compiled(LOOP, is_training=True, cache_dir=str(tmp_path))
    assert len(list(tmp_path.glob("*.executable"))) == 1
    assert emulator.schedule(first) == emulator.schedule(second)
    assert emulator.memory(first) == emulator.memory(second)

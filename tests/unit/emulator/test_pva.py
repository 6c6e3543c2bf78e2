"""`pva` over a report: its figures are those of the plans, and what is not known raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions import libpvti, pva

pytestmark = pytest.mark.feature("pva.openReport", fidelity="modelled")

ACCUMULATION = 5


class Stages(torch.nn.Module):
    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(num_ipus))

    def forward(self, x: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            poptorch.Block.start(f"block{ipu}", ipu_id=ipu)
            x = torch.relu(layer(x))
        return x, poptorch.identity_loss(x, "sum")


def trained(num_ipus: int, profile: Any) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).modelName("stages")
    options.enableProfiling(str(profile)).Training.gradientAccumulation(ACCUMULATION)
    module = Stages(num_ipus)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    for _ in range(3):
        model(torch.randn(ACCUMULATION, 24))
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(2, tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def report(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return pva.openReport(emulator.report(model, tmp_path_factory.mktemp("report")))


def test_steps_then_are_the_events_of_the_timeline(model, report):
    clock_hz = emulator.estimate(model).clock_hz
    events = emulator.timeline(model)
    steps = report.execution.steps
    assert len(steps) == len(events)
    for ipu in range(2):
        expected = sum(e.end_seconds - e.begin_seconds for e in events if e.ipu == ipu) * clock_hz
        assert sum(step.ipus[ipu].cycles for step in steps) == pytest.approx(
            expected, abs=len(events)
        )
    end = max(step.ipus[0].activeCycles.cyclesTo.max for step in steps)
    assert end == pytest.approx(max(e.end_seconds for e in events) * clock_hz, abs=2)
    names = [step.program.name for step in steps]
    assert names.count("forward 0") == names.count("backward 1") == ACCUMULATION


def test_visitor_when_programs_accept_it_then_its_methods_are_called(report):
    class Counter(pva.ProgramVisitor):
        num_computing = 0

        def visitOnTileExecute(self, program: Any) -> None:
            assert program.type is pva.Program.Type.OnTileExecute
            self.num_computing += 1

    counter = Counter()
    for step in report.execution.steps:
        step.program.accept(counter)
    kinds = [step.program.type for step in report.execution.steps]
    assert 0 < counter.num_computing == kinds.count(pva.Program.Type.OnTileExecute) < len(kinds)
    with pytest.raises(AttributeError, match=r"no such Program\.Type"):
        counter.visitNonsense()


def test_liveness_then_its_peak_is_that_of_the_tiles(model, report):
    tiles = emulator.tile_memory(model)
    steps = report.compilation.livenessProgramSteps
    for ipu, memory in enumerate(tiles.ipus):
        mine = [step for step in steps if memory.peak.at == step.program.name]
        peak = memory.peak.num_bytes + memory.peak.temporary_bytes * tiles.num_compute_tiles
        found = max(step.notAlwaysLiveMemoryForIpu(ipu).bytes for step in mine)
        assert found == pytest.approx(peak, abs=tiles.num_compute_tiles)
        with pytest.raises(pva.NotInReport, match="what IPU 2 holds"):
            mine[0].notAlwaysLiveMemoryForIpu(2)


def test_liveness_of_a_pipeline_then_is_what_a_walk_over_the_trace_finds(model, report, tmp_path):
    steps = report.compilation.livenessProgramSteps
    for step in steps:
        parts = [step.notAlwaysLiveMemoryForIpu(ipu).bytes for ipu in range(2)]
        assert step.notAlwaysLiveMemory.bytes == sum(parts)
    # The counters of the trace, in the order of time, are another reading of the same.
    trace = json.loads(emulator.trace(model, tmp_path / "trace.json").read_text())
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    held, most = {}, 0
    for event in sorted(counters, key=lambda one: one["ts"]):
        held[event["tid"]] = event["args"]["not always live"]
        most = max(most, sum(held.values()))
    num_tiles = emulator.tile_memory(model).num_compute_tiles
    assert max(step.notAlwaysLiveMemory.bytes for step in steps) == most * num_tiles
    # While one IPU is at its peak, the other one computes, too.
    alone = max(step.notAlwaysLiveMemoryForIpu(0).bytes for step in steps)
    assert alone < most * num_tiles


def test_categories_of_a_tile_then_make_up_what_it_holds(model, report):
    for memory, ipu in zip(emulator.tile_memory(model).ipus, report.compilation.ipus, strict=True):
        code = emulator.tile_memory(model).parts(memory)["vertex code"]
        for tile in (ipu.tiles[0], ipu.tiles[700], ipu.tiles[-1]):
            names = [name for name in dir(tile.memory.category) if name[0].islower()]
            total = sum(getattr(tile.memory.category, name).total for name in names)
            assert total == tile.memory.total.excludingGaps
            assert tile.memory.category.vertexCode.total == code > 0
    with pytest.raises(RuntimeError, match="hostExchangeCode is not in this report"):
        _ = report.compilation.tiles[0].memory.category.hostExchangeCode


def test_liveness_of_one_ipu_then_tells_all_bytes(tmp_path):
    one = pva.openReport(emulator.report(trained(1, tmp_path), tmp_path / "report"))
    steps = one.compilation.livenessProgramSteps
    assert max(step.notAlwaysLiveMemory.bytes for step in steps) > 0


def test_runs_then_are_the_calls_in_their_order(model):
    path = model._on_device.measurement.profile
    path.run()
    runs = pva.openReport(path.path).execution.runs
    assert [run.name for run in runs] == ["call 0", "call 1", "call 2"]
    times = [time for run in runs for time in (run.microseconds.start, run.microseconds.end)]
    assert times[0] == 0 and times == sorted(times)


def test_trace_then_events_are_nested_as_they_were(tmp_path):
    model = trained(1, tmp_path)
    outer = libpvti.createTraceChannel("outer")
    with libpvti.Tracepoint(outer, "epoch"):
        for step in range(2):
            with libpvti.Tracepoint(outer, f"step {step}"):
                model(torch.randn(ACCUMULATION, 24))
    with libpvti.Tracepoint(outer, "afterwards"):
        pass
    path = model._on_device.measurement.profile.path
    model.destroy()
    (process,) = pva.openTrace(path).processes
    calls, traced = process.threads
    assert (calls.name, traced.name) == ("calls", "outer")
    assert [event.label for event in calls.events] == [f"call {n}" for n in range(5)]
    epoch, after = traced.events
    assert (epoch.label, after.label) == ("epoch", "afterwards")
    assert [event.label for event in epoch.children] == ["step 0", "step 1"]
    assert not any(event.children for event in (*epoch.children, after))
    assert sum(event.duration for event in epoch.children) <= epoch.duration
    # The last two calls ran within the steps.
    for call, step in zip(calls.events[3:], epoch.children, strict=True):
        assert step.start <= call.start
        assert call.start + call.duration <= step.start + step.duration


def test_tiles_then_they_hold_what_the_mean_tile_holds_and_none_more_than_the_fullest(
    model, report
):
    tiles = emulator.tile_memory(model)
    found = [report.compilation.ipus[number].tiles for number in range(len(tiles.ipus))]
    assert len(report.compilation.tiles) == sum(map(len, found))
    for own, memory in zip(found, tiles.ipus, strict=True):
        assert len(own) == tiles.chip.num_tiles
        totals = [tile.memory.total.excludingGaps for tile in own]
        # Each category is rounded once for each tile.
        assert sum(totals) == pytest.approx(tiles.mean_bytes(memory) * len(own), abs=9 * len(own))
        assert max(totals) <= tiles.largest_bytes(memory) + 9
        peak = memory.peak.num_bytes / len(own) + memory.peak.temporary_bytes
        assert own[-1].memory.notAlwaysLiveBytes == pytest.approx(peak, abs=2)
        assert totals[0] == own[0].memory.alwaysLiveBytes + own[0].memory.notAlwaysLiveBytes
    with pytest.raises(IndexError):
        _ = report.compilation.tiles[10**6]
    assert len(report.compilation.tiles[:3]) == 3


def test_target_then_has_the_architecture(report):
    assert report.compilation.target.architecture is pva.IPU.Architecture.Ipu2


@pytest.mark.parametrize(
    "path",
    [
        "compilation.tiles[0].memory.total.includingGaps",
        "compilation.ipus[0].tiles[3].memory.category.message",
        "compilation.graph.numComputeSets",
        "compilation.alwaysLiveVariables",
        "compilation.loweredVariables",
        "compilation.programs",
        "execution.blocks",
        "execution.runs",
        "execution.steps[0].computeSets",
        "execution.steps[0].ipus[0].cyclesByTile",
        "execution.steps[0].program.children",
    ],
)
@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_what_is_not_known_then_raises_and_names_it(report, path, error):
    with pytest.raises(error, match=r"is not in this report, which holds") as caught:
        eval(f"report.{path}", {"report": report})
    assert str(caught.value).startswith(f"report.{path} ")

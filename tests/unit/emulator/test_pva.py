"""`pva` over a report: its figures are those of the plans, and unknown figures raise an error."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions import libpvti, pva
from poptorch_emu.companions.report_memory import Tiles

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
    # The last IPU applies its gradients after the first.
    end = max(ipu.activeCycles.cyclesTo.max for step in steps for ipu in step.ipus)
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
        with pytest.raises(pva.NotInReport, match="the memory of IPU 2 at this step"):
            mine[0].notAlwaysLiveMemoryForIpu(2)


def test_liveness_of_a_pipeline_then_is_what_a_walk_over_the_trace_finds(model, report, tmp_path):
    steps = report.compilation.livenessProgramSteps
    for step in steps:
        parts = [step.notAlwaysLiveMemoryForIpu(ipu).bytes for ipu in range(2)]
        assert step.notAlwaysLiveMemory.bytes == sum(parts)
    # The counters of the trace, in the order of time, must show the same peak.
    trace = json.loads(emulator.trace(model, tmp_path / "trace.json").read_text())
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    held, most = {}, 0
    for event in sorted(counters, key=lambda one: one["ts"]):
        held[event["tid"]] = event["args"]["not always live"]
        most = max(most, sum(held.values()))
    num_tiles = emulator.tile_memory(model).num_compute_tiles
    assert max(step.notAlwaysLiveMemory.bytes for step in steps) == most * num_tiles
    # While one IPU is at its peak, the other IPU computes as well.
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
    category = report.compilation.tiles[0].memory.category
    without_model = (category.hostExchangeCode, category.vectorListDescriptor)
    assert [part.total for part in (*without_model, category.vertexFieldData)] == [0, 0, 0]
    with pytest.raises(RuntimeError, match="instrumentationResults is not in this report"):
        _ = category.instrumentationResults


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
    opened = pva.openReport(path.path)
    assert all(len(run.steps) == len(opened.execution.steps) for run in opened.execution.runs)


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
    assert process.pid == os.getpid() and [calls.tid, traced.tid] == [1, 2]
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
        # On each tile, each category is rounded once.
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
        "compilation.tiles[0].memory.vertices",
        "compilation.ipus[0].tiles[3].memory.category.message",
        "compilation.graph.numVars",
        "compilation.graph.numVertices",
        "compilation.graph.numEdges",
        "compilation.loweredVariables",
        "compilation.programs[0]._id",
        "compilation.programs[0].codeBytesByTile",
        "compilation.programs[0].controlCodeByTile",
        "execution.blocks",
        "execution.runs",
        "execution.steps[0].ipus[0].cyclesByTile",
        "execution.steps[0].program.children",
    ],
)
@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_what_is_not_known_then_raises_and_names_it(report, path, error):
    with pytest.raises(error, match=r"is not in this report, which holds") as caught:
        eval(f"report.{path}", {"report": report})
    assert str(caught.value).startswith(f"report.{path} ")


def test_operation_analysis_then_says_where_the_lines_are(report):
    with pytest.raises(pva.NotInReport, match="emulator.read_report"):
        pva.OperationAnalysis(report)


def test_always_live_variables_then_are_what_the_tiles_hold_always(report):
    variables = {each.name: each.size for each in report.compilation.alwaysLiveVariables}
    tiles = report.compilation.tiles
    assert sum(variables.values()) == sum(tile.memory.alwaysLiveBytes for tile in tiles)
    assert {"weight", "vertexCode", "controlCode", "stack"} <= variables.keys()
    assert min(variables.values()) > 0
    for number in (0, 5, 1471, 1472, len(tiles) - 1):
        own = report.compilation.alwaysLiveVariablesForTile(number)
        assert sum(each.size for each in own) == tiles[number].memory.alwaysLiveBytes
        category = tiles[number].memory.category
        for each in own:
            if each.name in ("vertexCode", "vertexInstanceState", "controlCode", "stack"):
                assert each.size == pytest.approx(getattr(category, each.name).total, abs=2)
    with pytest.raises(IndexError):
        report.compilation.alwaysLiveVariablesForTile(len(tiles))


def test_live_variables_then_make_up_the_bytes_of_each_step(model, report):
    named = 0
    for step in report.compilation.livenessProgramSteps:
        held = step.notAlwaysLiveMemory
        assert sum(each.size for each in held.variables) == held.bytes
        named += any(not each.name.startswith("live on IPU") for each in held.variables)
        for ipu in range(2):
            own = step.notAlwaysLiveMemoryForIpu(ipu)
            assert sum(each.size for each in own.variables) == own.bytes
            tile = step.notAlwaysLiveMemoryForTile(ipu * 1472 + 7)
            assert tile.bytes == pytest.approx(own.bytes / 1472, abs=len(own.variables))
        with pytest.raises(pva.NotInReport):
            step.notAlwaysLiveMemoryForTile(2 * 1472)
    steps = report.compilation.livenessProgramSteps
    own = [step.notAlwaysLiveMemoryForIpu(step._values["ipu"]) for step in steps]
    assert named == sum(held.bytes > 0 for held in own) > 2
    peaks = {memory.peak.at: memory.peak for memory in emulator.tile_memory(model).ipus}
    for step in steps:
        if step.program.name in peaks:
            found = {each.name for each in step.notAlwaysLiveMemory.variables}
            assert found >= {name for name, _ in peaks[step.program.name].largest[:1]}


def test_live_variables_then_are_those_that_live(report):
    """Backward reads the input and the gradient of forward's result.

    The result is freed already.
    """
    names = {
        step.program.name.partition(" (")[0]: {
            each.name for each in step.notAlwaysLiveMemory.variables
        }
        for step in report.compilation.livenessProgramSteps
    }
    found = names["layers.0: mm, in backward 0"]
    assert {"input 0", "threshold_backward 2", "layers.0: mm"} <= found
    assert "layers.0: addmm" in names["layers.0: addmm, in forward 0"] - found


def test_gaps_then_there_are_none_and_what_fits_does_not_overflow(report):
    memory = report.compilation.tiles[0].memory
    assert memory.total.includingGaps == memory.total.excludingGaps > 0
    assert memory.overflowed.excludingGaps == memory.overflowed.includingGaps == 0


def test_overflow_then_is_what_is_above_the_limit():
    runs = {"weight": [[700_000, 1], [600_000, 1]], "program": [[1000, 2]]}
    memory = {"tiles": runs, "limit_bytes": 638_976, "categories": []}
    first, second = Tiles("tiles", [memory])
    assert first.memory.overflowed.excludingGaps == 701_000 - 638_976
    assert second.memory.overflowed.includingGaps == 0


def test_compute_sets_then_are_the_operations_that_take_time(model, report):
    computing = [row for row in emulator.estimate(model).all_operations if row.cycles]
    assert report.compilation.graph.numComputeSets == len(computing)
    (program,) = report.compilation.programs
    assert program.type is pva.Program.Type.Sequence
    assert len(program.children) == len(computing)
    for step in report.execution.steps:
        if step.program.type is not pva.Program.Type.OnTileExecute:
            continue
        total = sum(max(each.cyclesByTile) for each in step.computeSets)
        busy = [ipu.cycles for ipu in step.ipus if ipu.cycles]
        if step.computeSets and busy:
            assert total == pytest.approx(busy[0], abs=len(step.computeSets))


def test_vertices_of_a_program_then_have_types_and_tiles(report):
    seen: list[Any] = []

    class Vertices(pva.ProgramVisitor):
        def visitOnTileExecute(self, program: Any) -> None:
            seen.extend(program.computeset.vertices)
            assert len(program.computeset.vertices) >= 0

    visitor = Vertices()
    for step in report.compilation.livenessProgramSteps:
        step.program.accept(visitor)
    for step in report.execution.steps:
        step.program.accept(visitor)
    report.compilation.programs[0].accept(visitor)
    assert "aten::addmm" in {vertex.type.name for vertex in seen}
    assert all(sum(vertex.countByTile) % 1472 == 0 for vertex in seen)
    with pytest.raises(pva.NotInReport, match="size is not in this report"):
        _ = seen[0].type.size


def test_steps_then_have_cycles_by_tile_and_balance(report):
    for step in report.execution.steps:
        by_tile = list(step.cyclesByTile)
        assert len(by_tile) == report.compilation.target.numTiles
        for number, ipu in enumerate(step.ipus):
            own = by_tile[number * 1472 : (number + 1) * 1472]
            assert set(own) == {ipu.cycles}
            assert ipu.activeTileBalance == ipu.tileBalance == (1.0 if ipu.cycles else 0.0)
            assert ipu.activeCycles.cyclesFrom.min == ipu.activeCycles.cyclesFrom.max
            assert ipu.activeCycles.cyclesTo.min - ipu.activeCycles.cyclesFrom.max == ipu.cycles


def test_replicas_then_all_ipus_of_the_target_do_the_same(tmp_path):
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(2)
    options.modelName("stages").Training.gradientAccumulation(ACCUMULATION)
    module = Stages(2)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    model(torch.randn(2 * ACCUMULATION, 24))
    report = pva.openReport(emulator.report(model, tmp_path))
    target = report.compilation.target
    assert (target.numReplicas, target.ipusPerReplica, target.numIPUs) == (2, 2, 4)
    assert target.tilesPerReplica == 2 * 1472 == target.numTiles // 2
    assert target.memoryPerReplica * 2 == target.totalMemory
    for step in report.execution.steps:
        cycles = [ipu.cycles for ipu in step.ipus]
        assert len(cycles) == 4 and cycles[:2] == cycles[2:]
        assert list(step.cyclesByTile[:2944]) == list(step.cyclesByTile[2944:])


def test_target_then_its_type_is_that_of_the_device(report, tmp_path):
    assert report.compilation.target.type is pva.Target.Type.Ipu
    options = poptorch.Options().showCompilationProgressBar(False).useIpuModel(True)
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.ones(1, 2))
    other = pva.openReport(emulator.report(model, tmp_path))
    assert other.compilation.target.type is pva.Target.Type.IpuModel


def test_version_then_is_that_of_the_format(report):
    version = report.version
    assert (version.major, version.minor, version.point) == (1, 0, 0)
    assert not version.isUnstableFormat

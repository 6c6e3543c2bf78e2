"""Profiles on a full disk, traces by the rules of their format, and further records."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked_programs import run_forked
from support.random_plans import Case, built
from support.trace_format import check_trace

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.log import logger

pytestmark = pytest.mark.feature("emulator.trace", fidelity="modelled")

_FULL_DISK = """
import resource, signal, sys, torch, poptorch_emu as poptorch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
options = poptorch.Options().enableProfiling(sys.argv[1]).showCompilationProgressBar(False)
options.modelName("full")
module = torch.nn.Linear(4, 1)
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = module
    def forward(self, x):
        return poptorch.identity_loss(self.layer(x), "sum")
model = poptorch.trainingModel(Loss(), options, poptorch.optim.SGD(module.parameters(), lr=1.0))
model.compile(torch.ones(1, 4))
writer = model._on_device.measurement.profile
limit = writer.path.stat().st_size + 8192
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
before = module.bias.detach().clone()
for call in range(40):
    model(torch.ones(1, 4))
    writer.run()
model.destroy()
# The gradient of the bias is 1 in each of 40 updates.
print(float(before - module.bias))
"""


def test_profiling_when_files_may_not_grow_then_warns_once_and_trains(tmp_path):
    done = run_forked(["-c", _FULL_DISK, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(40, abs=1e-3)
    assert done.stderr.count("[warning]") == 1 and "ends here" in done.stderr
    view = emulator.read_report(tmp_path / "full" / "profile.pop").view
    assert view["name"] == "full" and view["fits"] is True


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor):
        return torch.relu(self.layer(x))


def profiled(folder: Path) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).modelName("layer")
    model = poptorch.inferenceModel(Layer(), options.enableProfiling(str(folder)))
    with poptorch.profiling.Channel("<b>mine").tracepoint("loading"):
        x = torch.randn(2, 8)
    model(x)
    with poptorch.profiling.Channel("<b>mine").tracepoint("after"):
        model(x)
    return model


def test_trace_then_keeps_the_rules_of_its_format(tmp_path):
    trace = json.loads(emulator.trace(profiled(tmp_path), tmp_path / "trace.json").read_text())
    check_trace(trace)
    named = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "tracepoint"]
    assert [event["name"] for event in named] == ["after"]


def machine_slices(trace: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the segments and the operations of the machine."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    operations = [event for event in slices if event["cat"] == "cpu_op"]
    return [event for event in slices if event["cat"] != "cpu_op"], operations


def test_operations_of_a_trace_then_have_the_names_of_torch_profiler(tmp_path):
    model = profiled(tmp_path)
    trace = json.loads(emulator.trace(model, tmp_path / "trace.json").read_text())
    _, operations = machine_slices(trace)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model.model(torch.randn(2, 8))
    assert {"aten::addmm", "aten::relu"} <= {event["name"] for event in operations}
    assert {event["name"] for event in operations} <= {event.key for event in profiler.events()}
    theirs = tmp_path / "theirs.json"
    profiler.export_chrome_trace(str(theirs))
    # Programs that read the profiler's traces select operations by their category.
    found = json.loads(theirs.read_text())
    kinds = {event["cat"] for event in found["traceEvents"] if event["name"] == "aten::addmm"}
    assert kinds == {event["cat"] for event in operations}
    assert found["schemaVersion"] == trace["schemaVersion"]


def test_operations_of_a_trace_then_each_lies_within_its_segment(tmp_path):
    trace = json.loads(emulator.trace(profiled(tmp_path), tmp_path / "trace.json").read_text())
    segments, operations = machine_slices(trace)
    for segment in (event for event in segments if event["name"].startswith("forward")):
        begin, end = segment["ts"], segment["ts"] + segment["dur"]
        within = [e for e in operations if begin <= e["ts"] and e["ts"] + e["dur"] <= end + 1e-9]
        assert sum(event["dur"] for event in within) == pytest.approx(segment["dur"])
    assert trace["otherData"]["dropped_events"]["operations of the machine (modelled)"] == 0


def test_counters_of_a_trace_then_their_highest_is_the_mean_tile_at_its_peak(tmp_path):
    model = profiled(tmp_path)
    trace = json.loads(emulator.trace(model, tmp_path / "trace.json").read_text())
    tiles = emulator.tile_memory(model)
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"memory of IPU 0: bytes of the mean tile"}
    most = max(sum(event["args"].values()) for event in counters)
    assert most == pytest.approx(tiles.mean_bytes(tiles.ipus[0]), abs=2)


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "zero_bubble_v", "dualpipe_v"])
def test_trace_of_a_pipeline_then_keeps_the_rules_of_its_format(tmp_path, schedule):
    ipus = (0, 0, 1, 1) if schedule in ("grouped", "interleaved") else (0, 1, 2, 3)
    case = Case((16,) * 5, ipus, 4, 8, 1, 2, schedule, is_adam=True)
    model, batch = built(case)
    trace = json.loads(emulator.trace(model, tmp_path / "trace.json", batch).read_text())
    check_trace(trace)
    kinds = Counter(event["cat"] for event in trace["traceEvents"] if event["ph"] != "M")
    assert min(kinds[kind] for kind in ("forward", "backward", "block", "cpu_op", "flow")) >= 16


def test_operations_of_a_trace_when_there_are_too_many_then_segments_are_left(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("poptorch_emu.report.trace_operations.MOST_OPERATIONS", 1)
    trace = json.loads(emulator.trace(profiled(tmp_path), tmp_path / "trace.json").read_text())
    segments, operations = machine_slices(trace)
    assert segments and not operations
    assert trace["otherData"]["dropped_events"]["operations of the machine (modelled)"] > 1


def test_trace_when_perfetto_reads_it_then_it_finds_every_slice(tmp_path):
    api = pytest.importorskip("perfetto.trace_processor", reason="pip install perfetto")
    program = shutil.which("trace_processor_shell")
    if program is None:
        pytest.skip("perfetto's trace_processor_shell is not on the path; it is no Python package")
    path = emulator.trace(profiled(tmp_path), tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    config = api.TraceProcessorConfig(bin_path=program)
    with api.TraceProcessor(trace=str(path), config=config) as processor:
        found = [row.name for row in processor.query("select name from slice")]
    assert sorted(found) == sorted(event["name"] for event in events if event["ph"] == "X")


def test_tracepoints_then_have_a_lane_of_the_timeline(tmp_path):
    view = emulator.summary(profiled(tmp_path)).view
    (line,) = (timeline for timeline in view["timelines"] if timeline["key"] == "seconds")
    assert line["lanes"] == ["virtual 0", "<b>mine"]
    names = ("lane", "start", "duration", "kind")
    rows = list(zip(*(line["columns"][name] for name in names), strict=True))
    kinds = [line["kinds"][kind] for _, _, _, kind in rows]
    assert kinds == ["forward", "forward", "tracepoint"]
    # The second call lies within the tracepoint around it.
    begin, length = rows[2][1:3]
    assert begin <= rows[1][1] and rows[1][1] + rows[1][2] <= begin + length
    assert rows[0][1] >= 0


def test_log_then_the_report_has_what_was_said(tmp_path):
    model = profiled(tmp_path)
    logger.warning("The user's %s is <b>odd</b>", "loader")
    last = emulator.summary(model).view["log"][-1]
    assert last["level"] == "WARNING" and last["text"] == "The user's loader is <b>odd</b>"

"""The page of a model: its figures equal those of the other plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.report.page.page_file import read_reports
from poptorch_emu.report.schedule_grid import slot_parts
from poptorch_emu.report.view import command, main

pytestmark = pytest.mark.feature("emulator.page", fidelity="modelled")

ROWS, ACCUMULATION = 4, 6
HOSTILE = "<img src=x onerror=alert(1)>"


class Stages(torch.nn.Module):
    """Two layers, each on an IPU of its own."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"block{ipu}", ipu_id=ipu):
                x = torch.nn.functional.gelu(layer(x))
                if ipu == 1:
                    return x, torch.nn.functional.mse_loss(x, y)
        raise AssertionError("the last block returns")


def trained(profile: Path | None = None) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).modelName(HOSTILE)
    if profile is not None:
        options.modelName("profiled").enableProfiling(str(profile))
    options.Training.gradientAccumulation(ACCUMULATION)
    torch.manual_seed(0)
    module = Stages()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    x, y = torch.randn(2, ROWS * ACCUMULATION, 64)
    model(x, y)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return trained()


@pytest.fixture(scope="module")
def report(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = emulator.page(model, tmp_path_factory.mktemp("page") / "page.html")
    (found,) = read_reports(path)
    return found


def test_summary_when_read_then_it_says_what_estimate_and_tile_memory_say(
    model: Any, report: dict[str, Any]
) -> None:
    plan, tiles = emulator.estimate(model), emulator.tile_memory(model)
    assert report["name"] == HOSTILE
    assert report["fits"] is tiles.fits is True
    assert report["speed"]["predicted_rows_per_second"] == plan.throughput
    assert report["speed"]["likely_rows_per_second"] == list(plan.speed.interval)
    assert report["speed"]["rows_per_step"] == ROWS * ACCUMULATION
    fullest = [ipu["fullest_tile_bytes"] for ipu in report["ipus"]]
    assert fullest == [tiles.largest_bytes(ipu) for ipu in tiles.ipus]


@pytest.mark.parametrize("numerics", [True, "numbers", torch.ones(2), {}])
def test_numerics_when_they_are_something_else_then_no_page_is_written(
    model: Any, tmp_path: Path, numerics: Any
) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(TypeError, match=r"numerics must be what emulator\.numerics\(model"):
        emulator.page(model, path=path, numerics=numerics)
    assert not path.exists()


def test_measured_speed_when_called_then_rows_and_seconds_agree(report: dict[str, Any]) -> None:
    speed = report["speed"]
    rows = speed["measured_rows_per_second"] * speed["measured_step_seconds"]
    assert rows == pytest.approx(ROWS * ACCUMULATION)


def test_timeline_when_read_then_each_micro_batch_runs_in_each_direction(
    report: dict[str, Any],
) -> None:
    (drawn,) = report["timelines"]
    columns = drawn["columns"]
    kinds = [drawn["kinds"][kind] for kind in columns["kind"]]
    rows = list(zip(kinds, columns["lane"], columns["micro_batch"], strict=True))
    for direction in ("forward", "backward"):
        expected = [(direction, lane, batch) for lane in range(2) for batch in range(ACCUMULATION)]
        assert sorted(row for row in rows if row[0] == direction) == expected
    # 64 float32 numbers of each row cross from one IPU to the other, in both directions.
    received = {num for num, kind in zip(columns["bytes"], kinds, strict=True) if num is not None}
    assert received == {4 * 64 * ROWS}


def test_timeline_when_the_window_is_long_then_what_is_not_drawn_is_marked(
    tmp_path: Path,
) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(100)
    module = Stages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    path = emulator.page(model, tmp_path / "page.html", *torch.randn(2, 100, 64))
    (drawn,) = read_reports(path)[0]["timelines"]
    columns = drawn["columns"]
    shown = {number for number in columns["micro_batch"] if number is not None}
    (gap,) = [span for span in drawn["spans"] if "not drawn" in span["name"]]
    assert gap["name"] == f"{100 - len(shown)} micro-batches, not drawn"
    for start, duration in zip(columns["start"], columns["duration"], strict=True):
        assert start + duration <= gap["start"] + 1 or start >= gap["end"] - 1


def test_page_of_a_table_then_shows_weights_apart_and_the_bubble(tmp_path: Path) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    emulator.set_schedule(options, "zero_bubble_h1")
    module = Stages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    model.compile(*torch.randn(2, ROWS * ACCUMULATION, 64))
    (found,) = read_reports(emulator.page(model, tmp_path / "page.html"))
    (drawn,) = found["timelines"]
    columns, names = drawn["columns"], [label["name"] for label in drawn["labels"]]
    ends = {"backward": [], "weights": []}
    for at, kind in enumerate(columns["kind"]):
        if drawn["kinds"][kind] in ends and columns["lane"][at] == 1:
            ends[drawn["kinds"][kind]].append(columns["start"][at] + columns["duration"][at])
    assert len(ends["backward"]) == len(ends["weights"]) == ACCUMULATION
    assert max(ends["weights"]) > max(ends["backward"])
    assert {"forward 0", "weights 0", "backward 1", "weights 1"} <= set(names)
    assert {stage["name"] for stage in found["graph"]["stages"]} >= {"backward 1", "weights 1"}
    plan = emulator.schedule(model)
    facts = dict(found["facts"])
    assert facts["Schedule"] == "zero_bubble_h1"
    assert facts["Bubble"].startswith(f"{plan.bubble_by_cycles:.1%} by cycles; {plan.bubble:.1%} ")


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "gpipe", "zero_bubble_h1"])
@pytest.mark.parametrize("count", [3, 4, 9])
def test_parts_of_the_timeline_then_are_those_of_the_schedule(schedule: str, count: int) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(count)
    emulator.set_schedule(options, schedule)
    module = Stages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    model.compile(*torch.randn(2, ROWS * count, 64))
    (drawn,) = emulator.summary(model).view["timelines"]
    spans = {span["name"]: span for span in drawn["spans"]}
    parts = slot_parts(emulator.schedule(model).grid)
    assert set(spans) == set(parts) - {"update"}
    slot = emulator.estimate(model).grid.slot_cycles
    if slot:  # All slots of a pipeline are equally long.
        for name, span in spans.items():
            assert span["start"] == pytest.approx(parts.index(name) * slot, abs=1)
    ends = [span["end"] for span in drawn["spans"]]
    assert [span["start"] for span in drawn["spans"]] == [0, *ends[:-1]]


def test_page_of_a_long_table_then_is_drawn(tmp_path: Path) -> None:
    for schedule in ("gpipe", "zero_bubble_h2"):
        options = poptorch.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(100)
        emulator.set_schedule(options, schedule)
        module = Stages()
        optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
        model = poptorch.trainingModel(module, options, optimizer)
        path = emulator.page(model, tmp_path / "page.html", *torch.randn(2, 100, 64))
        (drawn,) = read_reports(path)[0]["timelines"]
        assert all(span["start"] <= span["end"] for span in drawn["spans"])
        assert len({m for m in drawn["columns"]["micro_batch"] if m is not None}) == 24


def test_engine_when_profiled_then_its_events_are_shown_and_still_written(tmp_path: Path) -> None:
    model = trained(tmp_path)
    (found,) = read_reports(emulator.page(model, tmp_path / "page.html"))
    drawn = found["timelines"][1]
    assert drawn["unit"] == "seconds" and len(drawn["lanes"]) == 2
    kinds = [drawn["kinds"][kind] for kind in drawn["columns"]["kind"]]
    assert kinds.count("forward") == kinds.count("backward") == 2 * ACCUMULATION
    assert all(duration > 0 for duration in drawn["columns"]["duration"])
    model.destroy()
    trace = json.loads((tmp_path / "profiled" / "trace.json").read_text())
    assert len(trace["traceEvents"]) == len(kinds)


def test_memory_when_read_then_the_highest_step_is_the_peak(
    model: Any, report: dict[str, Any]
) -> None:
    tiles = emulator.tile_memory(model)
    for ipu, memory in zip(report["memory"]["ipus"], tiles.ipus, strict=True):
        steps = ipu["steps"]
        most = max(a + b for a, b in zip(steps["always"], steps["live"], strict=True))
        assert most == pytest.approx(tiles.mean_bytes(memory), abs=2)
        at = steps["live"].index(max(steps["live"]))
        assert steps["names"][at] == memory.peak.at
        # In a pipeline, every stage but the last recomputes its forward before backward.
        is_last = ipu["ipu"] == 1
        directions = ["forward", *([] if is_last else ["recompute"]), "backward", "update"]
        assert list(dict.fromkeys(steps["direction"])) == directions
        assert set(steps["block"]) == {f"block{ipu['ipu']}", ""}
        for direction, name in zip(steps["direction"], steps["names"], strict=True):
            assert direction in name or direction == "recompute"


def test_operations_when_read_then_their_cycles_are_those_of_the_segments(
    model: Any, report: dict[str, Any]
) -> None:
    columns, plan = report["operations"], emulator.estimate(model)
    for stage in plan.stages:
        segment = f"forward {stage.stage}"
        rows = zip(columns["segment"], columns["cycles"], strict=True)
        total = sum(cycles for name, cycles in rows if name == segment)
        assert total == pytest.approx(stage.forward.operation_cycles, rel=0.01)
    assert set(columns["block"]) >= {"block0", "block1"}


def test_utilisation_when_read_then_it_is_the_share_of_the_published_peak(
    model: Any, report: dict[str, Any]
) -> None:
    columns, plan = report["operations"], emulator.estimate(model)
    at = next(at for at, name in enumerate(columns["operator"]) if name == "aten::addmm")
    seconds = columns["cycles"][at] / plan.clock_hz
    # Published: 62.5 TFLOP/s of float32 on a Mk2. A row of the micro-batch meets 64 x 64 weights.
    expected = 2 * ROWS * 64 * 64 / seconds / 62.5e12
    assert columns["utilisation"][at] == pytest.approx(expected, rel=0.01)
    family = columns["operator"].index("aten::gelu")
    assert columns["utilisation"][family] is None


def test_graph_when_read_then_what_crosses_has_its_shape(report: dict[str, Any]) -> None:
    edges = {(edge["from"], edge["to"]): edge for edge in report["graph"]["edges"]}
    crossing = edges["forward 0", "forward 1"]
    assert [tensor["shape"] for tensor in crossing["tensors"]] == [f"[{ROWS}, 64]"]
    assert crossing["bytes"] == 4 * 64 * ROWS


def test_page_when_not_yet_called_then_the_measured_speed_is_not_known(tmp_path: Path) -> None:
    options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
    model = poptorch.inferenceModel(Stages(), options)
    path = emulator.page(model, tmp_path / "page.html", *torch.randn(2, 2 * ROWS, 64))
    (found,) = read_reports(path)
    assert found["mode"] == "inference" and found["name"] == "Stages"
    assert found["speed"]["measured_rows_per_second"] is None
    json.dumps(found, allow_nan=False)


def test_view_when_folders_of_reports_are_given_then_their_files_are_read(
    model: Any, tmp_path: Path
) -> None:
    folder, both = emulator.report(model, tmp_path).parent, tmp_path / "both.html"
    main([str(folder), str(folder / "profile.pop"), "-o", str(both)])
    first, second = read_reports(both)
    assert first == second and first["name"] == folder.name


def test_view_when_files_have_one_name_then_their_folders_tell_them_apart(
    model: Any, tmp_path: Path
) -> None:
    written = emulator.report(model, tmp_path)
    paths = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "profile.pop")
        paths[-1].write_bytes(written.read_bytes())
    both = tmp_path / "both.html"
    # One report is named by its folder, the other one by its file.
    main([str(paths[0].parent), str(paths[1]), "-o", str(both)])
    assert '"files":["before/profile.pop","after/profile.pop"]' in both.read_text()


def test_view_when_two_pages_are_given_then_one_page_holds_both(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = emulator.page(model, tmp_path / "first.html")
    second = emulator.page(model, tmp_path / "second.html", system="bow-pod16")
    both = tmp_path / "both.html"
    main([str(first), str(second), "-o", str(both)])
    assert capsys.readouterr().out.strip() == str(both)
    systems = [report["machine"]["system"] for report in read_reports(both)]
    assert systems[1] == "bow-pod16" != systems[0]


def test_view_when_the_file_is_no_report_then_the_error_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.html"
    other.write_text("<html></html>")
    with pytest.raises(SystemExit):
        main([str(other)])
    assert "not a page of a report" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path / "absent.html")])
    assert "absent.html: No such file or directory. Give a profile.pop" in capsys.readouterr().err


def test_command_when_it_is_not_view_then_the_usage_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["poptorch-emu", "look"])
    with pytest.raises(SystemExit, match="usage: poptorch-emu view .*found 'look'"):
        command()

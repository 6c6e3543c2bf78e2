"""Reports as files and values: a file read back has the same values, and a bad file is refused."""

from __future__ import annotations

import copy
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked_programs import run_forked

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.companions import pva
from poptorch_emu.executor import measurement
from poptorch_emu.options.auto_report import report_directory
from poptorch_emu.report import profile_reader, profile_writer
from poptorch_emu.report.page.page_file import read_reports
from poptorch_emu.report.profile_file import EVENT_COLUMNS, write_profile_file
from poptorch_emu.report.view import main
from poptorch_emu.runtime import tracepoints

pytestmark = pytest.mark.feature("emulator.report", fidelity="modelled")

ROWS, ACCUMULATION = 4, 6
HOSTILE = "../<b>name</b>"


class Pipeline(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        with poptorch.Block("first", ipu_id=0):
            x = torch.relu(self.layers[0](x))
        with poptorch.Block("second", ipu_id=1):
            x = self.layers[1](x)
            return x, torch.nn.functional.mse_loss(x, y)


def trained(profile: Path | None = None, name: str = "model") -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).modelName(name)
    if profile is not None:
        options.enableProfiling(str(profile))
    options.Training.gradientAccumulation(ACCUMULATION)
    module = Pipeline()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    model(*torch.randn(2, ROWS * ACCUMULATION, 32))
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("profile"))


def test_report_then_what_is_read_is_what_is_known(model, tmp_path):
    expected = json.loads(json.dumps(emulator.summary(model).view))
    path = emulator.report(model, tmp_path)
    found = dict(emulator.read_report(path).view)
    assert path == tmp_path / "model" / "profile.pop"
    assert found.pop("written") and expected.pop("written")
    assert found == expected


def test_report_then_plain_sql_finds_each_operation(model, tmp_path):
    cycles = {
        op.name + op.segment: round(op.cycles) for op in emulator.estimate(model).operations()
    }
    with sqlite3.connect(emulator.report(model, tmp_path)) as file:
        rows = file.execute("select name, segment, cycles from operation").fetchall()
    assert {name + segment: count for name, segment, count in rows} == cycles


def test_report_of_a_name_that_is_a_path_then_stays_in_the_directory(tmp_path):
    path = emulator.report(trained(name=HOSTILE), tmp_path / "reports")
    assert path.parent.parent == tmp_path / "reports"


def test_view_of_a_profile_file_then_makes_its_page(model, tmp_path):
    path, page = emulator.report(model, tmp_path), tmp_path / "page.html"
    main([str(path), "-o", str(page)])
    assert read_reports(page) == [emulator.read_report(path).view]


@pytest.mark.parametrize("columns", [60, 80, 130, 160])
def test_summary_then_fits_the_terminal(model, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = str(emulator.summary(model))
    assert max(map(len, text.splitlines())) <= columns
    assert "rows a second" in text


def test_summary_in_a_notebook_then_escapes_names():
    shown = emulator.summary(trained(name=HOSTILE))._repr_html_()
    assert "<b>" not in shown and "&lt;b&gt;" in shown


def engine_kinds(path: Path) -> list[str]:
    """Returns the kind of each event of the engine that a file has; none without a call."""
    view = emulator.read_report(path).view
    found = [timeline for timeline in view["timelines"] if timeline["key"] == "seconds"]
    return [line["kinds"][kind] for line in found for kind in line["columns"]["kind"]]


def test_profiling_then_events_are_in_the_file_while_the_model_lives(tmp_path):
    model = trained(tmp_path)
    path = tmp_path / "model" / "profile.pop"
    model._on_device.measurement.profile.run()  # Waits for the writer.
    # Each micro-batch has a forward and a backward on each of the two stages.
    kinds = engine_kinds(path)
    assert kinds.count("forward") == kinds.count("backward") == 2 * ACCUMULATION
    model(*torch.randn(2, ROWS * ACCUMULATION, 32))
    model.destroy()
    assert len(engine_kinds(path)) == 2 * len(kinds)
    speed = emulator.read_report(path).view["speed"]
    assert speed["predicted_rows_per_second"] > 0 and speed["measured_rows_per_second"] > 0


def test_profiling_of_a_long_run_then_calls_in_the_middle_are_summed_up(tmp_path, monkeypatch):
    monkeypatch.setattr(profile_writer, "KEPT_CALLS", 2)
    model = trained(tmp_path)
    data = torch.randn(2, ROWS * ACCUMULATION, 32)
    writer = model._on_device.measurement.profile
    of_a_call = len(writer.run().events)
    for _ in range(8):
        model(*data)
        writer.run()
    model.destroy()
    path = tmp_path / "model" / "profile.pop"
    with closing(sqlite3.connect(path)) as file:
        assert [row[0] for row in file.execute("select number from call")] == [0, 1, 7, 8]
        count, total_ns = file.execute(
            "select sum(num_events), sum(total_ns) from left_out"
        ).fetchone()
    assert count == 5 * of_a_call and total_ns > 0
    assert profile_reader.read_run(path).num_left_out == count
    trace = json.loads((tmp_path / "model" / "trace.json").read_text())
    assert trace["otherData"] == {"dropped_events": count}


def test_profiling_when_the_disk_fills_while_it_runs_then_warns_once_and_trains(
    tmp_path, monkeypatch, caplog
):
    model = trained(tmp_path)
    writer = model._on_device.measurement.profile
    writer.run()

    def fill(*args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(writer, "_write_calls", fill)
    for _ in range(3):
        model(*torch.randn(2, ROWS * ACCUMULATION, 32))
        writer.run()
    assert caplog.text.count("ends here; the model continues to run: database or disk is full") == 1
    assert len(engine_kinds(writer.path)) > 0
    model.destroy()


def test_tracepoints_when_a_model_is_profiled_then_are_in_its_file(tmp_path):
    others = list(tracepoints.listeners)
    model = trained(tmp_path)
    with poptorch.profiling.Channel("mine").tracepoint("loading"):
        pass
    model.destroy()
    with closing(sqlite3.connect(tmp_path / "model" / "profile.pop")) as file:
        ((channel, name, start_ns, end_ns),) = file.execute("select * from tracepoint")
    assert (channel, name) == ("mine", "loading") and start_ns <= end_ns
    # Models of other tests may be collected meanwhile, and their listeners with them.
    assert all(listener in others for listener in tracepoints.listeners)


def test_profiling_where_nothing_can_be_written_then_warns_once_and_trains(tmp_path, monkeypatch):
    warnings: list[object] = []
    monkeypatch.setattr(measurement.logger, "warning", lambda *args: warnings.append(args))
    blocked = tmp_path / "a_file"
    blocked.write_text("no directory")
    trained(blocked, "full").destroy()
    assert blocked.read_text() == "no directory"
    assert len(warnings) == 1


def test_write_when_the_disk_is_full_then_the_old_file_stays(model, tmp_path, monkeypatch):
    path = emulator.report(model, tmp_path)
    content = path.read_bytes()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("poptorch_emu.report.profile_file._insert", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_profile_file(path, emulator.summary(model).view)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_read_of_other_files_then_says_what_they_are(model, tmp_path):
    text = tmp_path / "text.pop"
    text.write_text("no report")
    with pytest.raises(ValueError, match="not an SQLite database"):
        emulator.read_report(text)
    other = emulator.report(model, tmp_path)
    with sqlite3.connect(other) as file:
        file.execute("pragma user_version=99")
    with pytest.raises(ValueError, match="version 99"):
        emulator.read_report(other)
    half = tmp_path / "half.pop"
    half.write_bytes(other.read_bytes()[:3000])
    with pytest.raises(ValueError, match="damaged"):
        emulator.read_report(half)


def test_read_of_what_is_no_file_then_refuses_at_once(tmp_path, capsys):
    path = tmp_path / "profile.pop"
    os.mkfifo(path)
    for read in (emulator.read_report, pva.openReport, pva.openTrace, read_reports):
        with pytest.raises(OSError, match="is a FIFO"):
            read(path)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "is a FIFO" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_read_when_a_fifo_is_beside_the_file_then_refuses_at_once(model, tmp_path, suffix):
    path = emulator.report(model, tmp_path)
    os.mkfifo(f"{path}{suffix}")
    with pytest.raises(OSError, match=f"{suffix} is a FIFO"):
        emulator.read_report(path)
    # A new report removes the side file.
    assert emulator.read_report(emulator.report(model, tmp_path)).view["mode"] == "training"


def test_read_of_a_forged_view_that_never_ends_then_refuses(model, tmp_path):
    path = emulator.report(model, tmp_path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("drop table event")
        columns = ", ".join(f"i as {name}" for name in ("timeline", "number", *EVENT_COLUMNS))
        file.execute(
            "create view event as with recursive n(i) as (select 1 union all select i from n) "
            f"select {columns} from n"
        )
        file.commit()
    with pytest.raises(ValueError, match=f"{path} is no report of this version, or is damaged"):
        emulator.read_report(path)


def test_read_of_a_file_without_what_came_later_then_opens_and_makes_a_page(model, tmp_path):
    view = emulator.summary(model).view
    earlier = copy.deepcopy(dict(view))
    for insight in earlier["insights"]:
        del insight["code"]
    for ipu in earlier["memory"]["ipus"]:
        del ipu["steps"]["direction"], ipu["steps"]["block"]
        del ipu["steps"]["largest"], ipu["live_names"]
    path = tmp_path / "profile.pop"
    write_profile_file(path, earlier)
    report = emulator.read_report(path)
    assert [one["text"] for one in report.view["insights"]] == [
        one["text"] for one in view["insights"]
    ]
    assert view["insights"][0]["text"].split()[0] in str(report)
    main([str(path), "-o", str(tmp_path / "page.html")])
    (found,) = read_reports(tmp_path / "page.html")
    assert found == report.view
    steps = found["memory"]["ipus"][0]["steps"]
    assert len(steps["direction"]) == len(steps["block"]) == len(steps["names"])


@pytest.mark.parametrize("section", ["machine", "timelines", "memory", "ipus", "operations"])
def test_read_of_an_old_report_then_says_what_it_lacks(model, tmp_path, section, capsys):
    path = emulator.report(model, tmp_path)
    with closing(sqlite3.connect(path)) as file:
        if section == "operations":
            file.execute("alter table operation drop column utilisation")
        file.execute("delete from section where name = ?", (section,))
        file.commit()
    for read in (emulator.read_report, pva.openReport, pva.openTrace):
        with pytest.raises(ValueError, match=f"{path} is .* damaged: .*{section[:-1]}.* Write it"):
            read(path)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert "Write it anew" in capsys.readouterr().err


def test_trace_then_each_slice_has_a_track_and_each_arrow_two_ends(model, tmp_path):
    events = json.loads(emulator.trace(model, tmp_path / "trace.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    assert sorted(processes.values()) == ["engine (exact)", "machine (modelled)"]
    assert {(e["pid"], e["tid"]) for e in slices} == tracks
    # Tracepoints of other tests may have a track, too.
    assert len({(e["pid"], e["tid"]) for e in slices if e["cat"] != "tracepoint"}) == 4
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["name"] for e in slices)
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    # Each micro-batch has an arrow forward and one back, for the machine and for the engine.
    assert begins.keys() == ends.keys() and len(begins) == 2 * 2 * ACCUMULATION
    for name, begin in begins.items():
        assert begin["ts"] <= ends[name]["ts"]
        assert ends[name]["bp"] == "e"


def test_pva_then_tells_the_target_and_refuses_what_is_not_held(model, tmp_path):
    report = pva.openReport(emulator.report(model, tmp_path))
    chip, plan = emulator.tile_memory(model).chip, emulator.estimate(model)
    target = report.compilation.target
    assert (target.numIPUs, target.tilesPerIpu) == (2, chip.num_tiles)
    assert target.totalMemory == 2 * chip.num_tiles * chip.tile_bytes
    assert report.execution.totalCycles.total == pytest.approx(
        plan.step_seconds * plan.clock_hz, abs=1
    )
    assert report.poplarVersion.string == poptorch.__version__
    with pytest.raises(AttributeError, match=r"report\.compilation\.loweredVariables is not"):
        _ = report.compilation.loweredVariables


@pytest.mark.parametrize(
    ("environment", "engine_options", "expected"),
    [
        ("", {}, None),
        ("", {"autoReport.all": "true", "autoReport.directory": "/a"}, "/a"),
        ('{"autoReport.all": "true", "autoReport.directory": "/b"}', {}, "/b"),
        ('{"autoReport.outputExecutionProfile": "true"}', {"autoReport.directory": "/a"}, "/a"),
        ('{"autoReport.directory": "/b"}', {"autoReport.all": "true"}, "/b"),
        ('{"autoReport.all": "false"}', {"autoReport.all": "true"}, None),
        ('{"autoReport.directory": "/b"}', {}, None),
        ('{"debug.instrument": "true"}', {}, None),
    ],
)
def test_report_directory_then_the_environment_wins(
    environment, engine_options, expected, monkeypatch
):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", environment)
    assert report_directory(engine_options) == expected


def test_report_directory_of_a_broken_variable_then_says_what_to_give(monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "{autoReport.all: true}")
    with pytest.raises(poptorch.Error, match="POPLAR_ENGINE_OPTIONS must be a JSON object"):
        report_directory({})


def test_profiling_of_a_killed_process_then_the_file_opens(tmp_path):
    program = """
import os, signal, sys, torch, poptorch_emu as poptorch
options = poptorch.Options().enableProfiling(sys.argv[1]).showCompilationProgressBar(False)
model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
model(torch.ones(1, 2))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_forked(["-c", program, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    path = tmp_path / "inference" / "profile.pop"
    view = emulator.read_report(path).view
    assert view["mode"] == "inference" and view["fits"] is True
    # A later report contains nothing of this one.
    assert emulator.report(trained(name="inference"), tmp_path) == path
    assert emulator.read_report(path).view["mode"] == "training" and engine_kinds(path) == []


def test_report_of_paths_that_are_no_text_then_has_them_as_escapes(model, tmp_path):
    view = json.loads(json.dumps(emulator.summary(model).view))
    view["name"] = view["operations"]["source"][0] = "\udcff.py"
    path, page = tmp_path / "profile.pop", tmp_path / "page.html"
    write_profile_file(path, view)
    main([str(path), "-o", str(page)])
    assert read_reports(page)[0]["operations"]["source"][0] == r"\udcff.py"
    assert r"\udcff.py" in str(emulator.read_report(path))


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "a/../../../x", "x" * 999, "\0"])
def test_profile_of_any_name_then_is_in_its_folder(name, tmp_path):
    trained(tmp_path / "in" / "profiles", name).destroy()
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 5  # The profile, and four texts.
    assert {path.parent.parent for path in found} == {tmp_path / "in" / "profiles"}


@pytest.mark.parametrize("name", ["graph.txt", "memory.txt", "schedule.txt", "trace.json"])
def test_profile_when_other_things_are_in_place_of_its_files_then_replaces_them(name, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / name)
    (folder / "profile.pop").symlink_to("/dev/null")
    trained(tmp_path).destroy()
    assert (folder / name).is_file() and not (folder / "profile.pop").is_symlink()
    assert engine_kinds(folder / "profile.pop").count("forward") == 2 * ACCUMULATION

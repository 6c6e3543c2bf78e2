"""Values of the emulator fit 80 columns when printed, and are readable in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser

import pytest
import torch
from support.emulator_values import BATCH, NAME, OTHERS, VALUES, make_training, training

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.plan.time.time_plan import Event
from poptorch_emu.printed.records import Records
from poptorch_emu.report.timeline_report import TimelineReport
from poptorch_emu.report.written_file import WrittenFile

# Functions whose results have records as members.
MEMBERS = (
    "estimate", "timeline", "what_if", "plan_split", "compare_schedules", "memory", "tile_memory",
    "compare", "numerics", "schedule",
)  # fmt: skip
_WITHOUT_END = {"rect", "meta", "br", "input"}


class _Balance(HTMLParser):
    """Parses markup, and counts the elements that are still open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag


def elements(markup: str) -> set[str]:
    """Returns the elements of some markup, which must be well formed."""
    parser = _Balance()
    parser.feed(markup)
    parser.close()
    assert not parser.open
    return parser.seen


def test_values_then_there_is_one_for_each_function():
    assert set(VALUES) | OTHERS == set(emulator.__all__)
    assert not set(VALUES) & OTHERS


@pytest.mark.parametrize("name", VALUES)
def test_value_when_printed_then_fits_80_columns(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = str(VALUES[name](tmp_path))
    assert text.strip()
    # The length of a path is arbitrary.
    if name not in ("lab", "page", "record", "report", "trace"):
        assert max(map(len, text.splitlines())) <= 80
    assert " object at 0x" not in text and "<class" not in text


@pytest.mark.parametrize("name", VALUES)
def test_value_in_a_notebook_then_is_well_formed_and_names_are_text(name, tmp_path):
    markup = VALUES[name](tmp_path)._repr_html_()
    assert elements(markup) <= {
        "code", "div", "iframe", "pre", "rect", "span", "svg", "table", "td", "text", "th", "title",
        "tr",
    }  # fmt: skip
    assert NAME not in markup


def members(value: object) -> Iterator[tuple[str, object]]:
    """Yields the fields of a value that are records, or tuples of records."""
    for field in fields(value) if is_dataclass(value) else ():
        member = getattr(value, field.name)
        first = member[0] if isinstance(member, tuple) and member else member
        if is_dataclass(first) and hasattr(first, "_repr_html_"):
            yield field.name, member


def test_members_of_reports_then_are_shown_as_tables_whose_names_are_text(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = set()
    for name in MEMBERS:
        for member, value in members(VALUES[name](tmp_path)):
            shown.add(f"{name}.{member}")
            for each in (value, value[0]) if isinstance(value, tuple) else (value,):
                markup = each._repr_html_()
                assert elements(markup) <= {"div", "pre", "table", "td", "th", "tr"}
                assert NAME not in markup
            if isinstance(value, tuple):
                assert "(" not in str(value).splitlines()[0]
                assert max(map(len, str(value).splitlines())) <= 80
    assert shown >= {
        "estimate.stages", "estimate.ipus", "estimate.updates", "estimate.all_operations",
        "what_if.points", "plan_split.stages", "compare_schedules.candidates", "compare.modules",
        "memory.holdings", "tile_memory.ipus",
    }  # fmt: skip


def test_members_then_have_their_numbers_and_equal_the_tuple():
    time = emulator.estimate(training())
    assert type(time.stages) is not tuple and time.stages == tuple(time.stages)
    text = str(time.ipus)
    assert text.startswith("ipu  seconds.compute")
    for ipu in time.ipus:
        assert f"{ipu.seconds[Part.COMPUTE]:.4g}" in text
    assert "accumulation 16" in str(
        emulator.what_if(training(), sweep={"accumulation": [16]}).points
    )


def test_members_when_there_are_many_then_the_others_are_counted():
    events = Records(Event(0, f"0F{n}", n, 0.0, n * 1e-6, "forward") for n in range(1_234))
    assert str(events).endswith("1,174 more are not shown.")
    assert "1,174 more are not shown." in events._repr_html_()
    assert "more" not in str(Records(events[:60]))


def test_timeline_in_a_notebook_then_has_a_lane_an_ipu_and_the_numbers_of_micro_batches(tmp_path):
    markup = VALUES["timeline"](tmp_path)._repr_html_()
    for text in ("IPU 0", "IPU 1", "forward", "backward", "update"):
        assert f">{text}</text>" in markup
    assert ">7</text>" in markup


def test_timeline_without_length_then_is_drawn():
    event = Event(0, "0F0", 0, 0.0, 0.0, "forward")
    assert elements(TimelineReport((event,))._repr_html_()) >= {"svg", "rect"}
    assert "no events" in TimelineReport(())._repr_html_()


def test_timeline_of_many_events_then_draws_what_can_be_seen():
    events = [Event(0, f"0F{n}", n, n * 1e-6, (n + 1) * 1e-6, "forward") for n in range(20_000)]
    assert TimelineReport(tuple(events))._repr_html_().count("<rect") < 2_200


def test_page_in_a_notebook_then_is_the_page_in_a_frame_that_reaches_nothing(tmp_path):
    page = VALUES["page"](tmp_path)
    assert page == tmp_path / "page.html" and str(page).endswith("page.html")
    markup = page._repr_html_()
    assert markup.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in markup
    page.unlink()
    assert elements(page._repr_html_()) == {"code"}


def test_path_of_a_file_then_is_a_path_and_names_are_text(tmp_path):
    path = WrittenFile(tmp_path / "<i>.json")
    path.write_text("{}")
    assert "<i>" not in path._repr_html_() and "(2 bytes)" in path._repr_html_()
    assert path.parent == tmp_path and path.name == "<i>.json"


def test_split_of_many_blocks_then_its_code_fits_and_runs():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(24))

        def forward(self, x):
            for index, layer in enumerate(self.layers):
                with poptorch.Block(f"layer number {index}"):
                    x = layer(x)
            return x

    options = poptorch.Options().deviceIterations(4)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    inference = poptorch.inferenceModel(Model(), options)
    split = emulator.plan_split(inference, torch.ones(8, 4), num_ipus=2)
    assert max(map(len, split.code().splitlines())) <= 80
    again = poptorch.Options().deviceIterations(4)
    exec(split.code(), {"options": again, "poptorch": poptorch})
    placed = poptorch.inferenceModel(Model(), again)
    placed.compile(torch.ones(8, 4))
    assert str(emulator.schedule(placed)).count("\nstage ") == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda model: emulator.estimate(model, BATCH),
        lambda model: emulator.timeline(model, BATCH),
        lambda model: emulator.summary(model, BATCH),
        lambda model: emulator.page(model, "page.html", BATCH),
        lambda model: emulator.report(model, None, BATCH),
        lambda model: emulator.trace(model, "trace.json", BATCH),
        lambda model: emulator.what_if(model, BATCH, sweep={"replicas": [1]}),
        lambda model: emulator.plan_split(model, BATCH, num_ipus=2),
        lambda model: emulator.autoplace(model, BATCH, num_ipus=2),
        lambda model: emulator.compare_schedules(model, BATCH),
        lambda model: emulator.compare(model, BATCH),
        lambda model: emulator.first_nonfinite(model, BATCH),
        lambda model: emulator.record(model, "golden.run", BATCH),
        lambda model: emulator.tile_memory(model, BATCH),
        emulator.schedule,
        emulator.memory,
        emulator.export_pipeline,
        emulator.to_torch,
        lambda model: emulator.stream(model, BATCH),
    ],
)
@pytest.mark.parametrize("model", [torch.nn.ReLU(), torch.nn.ReLU, None, "model"], ids=repr)
def test_model_that_is_not_wrapped_then_says_how_to(call, model):
    with pytest.raises(TypeError, match=r"must be wrapped, but got .*poptorch\.trainingModel"):
        call(model)


@pytest.mark.parametrize(
    "choose",
    [
        lambda options: emulator.set_schedule(options, "gpipe"),
        lambda options: emulator.set_latencies(options, "modelled"),
        lambda options: emulator.set_recomputation(options, "executed"),
    ],
)
def test_what_is_no_options_then_says_so(choose):
    for wrong in (None, {}, poptorch.Options):
        with pytest.raises(TypeError, match=r"must be poptorch\.Options\(\), but got"):
            choose(wrong)


@pytest.mark.parametrize("write", ["page", "record", "trace"])
@pytest.mark.parametrize("arguments", [(), (BATCH, "page.html"), (BATCH,), ("",), (3,)], ids=len)
def test_path_that_is_missing_or_swapped_then_is_named(write, arguments):
    with pytest.raises(TypeError, match=rf"emulator\.{write} needs a path, but got .*path=\.\.\."):
        getattr(emulator, write)(make_training(), *arguments)


def test_directory_that_is_an_input_then_is_named():
    with pytest.raises(TypeError, match="needs a path, but got a value of type torch.Tensor"):
        emulator.report(make_training(), BATCH)


@pytest.mark.parametrize("write, name", [("page", "path"), ("record", "path"), ("trace", "path")])
def test_path_by_name_or_before_the_inputs_then_is_the_same(write, name, tmp_path):
    function, place = getattr(emulator, write), tmp_path / "file.html"
    for arguments, keywords in (((place, BATCH), {}), ((BATCH,), {name: str(place)})):
        assert function(make_training(), *arguments, **keywords) == place
        place.unlink()


def test_directory_by_name_before_the_inputs_or_none_then_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / "Layers" / "profile.pop"
    for arguments, keywords in (
        ((tmp_path, BATCH), {}),
        ((BATCH,), {"directory": tmp_path}),
        ((None, BATCH), {}),
    ):
        assert emulator.report(make_training(), *arguments, **keywords).resolve() == expected


@pytest.mark.parametrize("system", ["bow-pod-16", 16, ["bow-pod16"]])
def test_system_that_is_none_then_lists_them(system):
    with pytest.raises(poptorch.Error, match="no virtual system. Choose one of none, mk1-c2"):
        emulator.estimate(make_training(), BATCH, system=system)


@pytest.mark.parametrize("sweep", [{"accumulation": 2}, {"accumulation": "12"}, ["accumulation"]])
def test_sweep_that_is_no_lists_by_name_then_says_so(sweep):
    with pytest.raises(
        poptorch.Error, match="a list of values to try|from settings to lists of values"
    ):
        emulator.what_if(make_training(), BATCH, sweep=sweep)

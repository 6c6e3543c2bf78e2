"""Reports in terminals and notebooks: widths, names that contain markup, and pictures."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from support.forked_programs import run_forked

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.printed.terminal import fitted_table
from poptorch_emu.report import pictures, schedule_picture
from poptorch_emu.report.model_report import ModelReport
from poptorch_emu.report.terms import TERMS
from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.free_run import free_run
from poptorch_emu.schedule.make import ScheduleKind, make_schedule

mpl.use("Agg")
schedules = emulator.schedules

pytestmark = [
    pytest.mark.feature("emulator.schedule", fidelity="exact"),
    pytest.mark.feature("emulator.timeline", fidelity="modelled"),
]

HOSTILE = "<img src=x onerror=alert(1)> $\\frac{ " + "long" * 40
SHOWS = ("schedule", "timeline", "memory", "tile_memory", "summary")


class Pipeline(torch.nn.Module):
    def __init__(self, num_ipus: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(num_ipus))

    def forward(self, x: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            poptorch.Block.start(f"{HOSTILE} {ipu}", ipu_id=ipu)
            x = layer(torch.tanh(layer(x)))
        return x, poptorch.identity_loss(x, "sum")


def compiled(num_ipus: int, accumulation: int) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False).modelName(HOSTILE)
    options.Training.gradientAccumulation(accumulation)
    module = Pipeline(num_ipus)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    model.compile(torch.randn(accumulation, 16))
    return model


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    """Returns the reports on a pipeline of 8 IPUs, whose tables are too wide for a terminal."""
    model = compiled(8, 40)
    return {name: getattr(emulator, name)(model) for name in SHOWS}


class Elements(HTMLParser):
    """Collects the elements and the text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def pixels(axes: Any) -> np.ndarray:
    """Returns the different colours in a picture, and closes it."""
    figure = np.atleast_1d(axes)[0].figure
    figure.canvas.draw()
    image = np.asarray(figure.canvas.buffer_rgba())[..., :3].reshape(-1, 3)
    plt.close(figure)
    # Sorting one number for each pixel is many times faster than sorting three.
    numbers = np.unique(image.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32))
    return np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1).astype(np.uint8)


@pytest.fixture(scope="module")
def colours_of(values: dict[str, Any]) -> Callable[[str], np.ndarray]:
    """Returns a function for the colours of a report's picture, which is drawn only once."""
    return functools.cache(lambda name: pixels(values[name].plot()))


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", SHOWS)
def test_text_of_a_wide_model_then_fits_the_terminal(values, name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = str(values[name]).splitlines()
    assert max(map(len, lines)) <= columns
    # Tables use the available width, except the narrow table of memory.
    assert max(map(len, lines)) > (columns - 25 if name != "memory" else 60)


@pytest.mark.parametrize("columns", [80, 120])
def test_text_of_time_then_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "a_module_with_a_name_that_is_longer_than_most" * 2
    module = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8)})
    module.forward = lambda x: torch.relu(module[name](x))
    options = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(module, options)
    sweep = {"system": ["mk2-pod16", "bow-pod16"], "micro_batch": [1, 2]}
    x = torch.randn(1, 8)
    shown = emulator.estimate(model, x), emulator.what_if(model, x, sweep=sweep)
    for value in shown:
        assert max(map(len, str(value).splitlines())) <= columns
        assert {"table", "tr", "td"} <= Elements(value._repr_html_()).names
    # A name that is too long is shown with its beginning and its end.
    assert "a_module_wi" in str(shown[0]) and "most: addmm" in str(shown[0])


@pytest.mark.parametrize("name", SHOWS)
def test_html_when_names_are_markup_then_they_are_text(values, name):
    found = Elements(values[name]._repr_html_())
    picture = {"svg", "rect", "text", "title"} if name == "timeline" else set()
    assert found.names <= {"table", "tr", "td", "th", "pre", "div", "span"} | picture
    if name in ("schedule", "summary"):
        assert "<img src=x onerror=alert(1)> $\\frac{" in found.text
    assert "IPU" in found.text


@pytest.mark.parametrize("name", SHOWS)
def test_picture_then_is_not_blank(colours_of, name):
    # Axes, text and their smoothing only have shades of grey.
    found = colours_of(name)
    coloured = found[np.ptp(found.astype(int), axis=1) > 40]
    assert len(coloured) > 20


@pytest.mark.parametrize("name", SHOWS)
def test_picture_when_axes_are_given_then_is_drawn_there(values, name):
    figure, axes = plt.subplots(1, 2) if name == "summary" else plt.subplots()
    assert values[name].plot(axes) is axes
    assert all(one.has_data() for one in np.atleast_1d(axes))
    plt.close(figure)


def test_schedule_picture_then_has_the_colour_of_each_kind(values, colours_of):
    plan = values["schedule"]
    found = {tuple(colour) for colour in colours_of("schedule").tolist()}
    for kind in ("forward", "recompute", "backward", "update"):
        assert tuple(rgb(TERMS[kind].colour)) in found, kind
    # All stages of a pipeline recompute, except the last one, whose backward follows at once.
    assert plan.recomputes == (True,) * 7 + (False,)
    drawn = {(event.ipu, event.kind) for event in values["timeline"]}
    assert plan.recomputes == tuple((ipu, "recompute") in drawn for ipu in range(8))


@pytest.mark.parametrize("kind", [k for k in ScheduleKind if "phased" not in k.value])
def test_boxes_then_each_action_has_its_own_in_the_order_of_dependence(kind):
    num_stages, num_micro_batches = 3, 7
    grid = make_schedule(kind, tuple(range(num_stages)), num_micro_batches, is_training=True)
    boxes, gaps = schedule_picture.boxes_of(grid, (True, True, False))
    span = {(b.kind, b.lane, b.text): (b.begin, b.begin + b.length) for b in boxes}
    assert not gaps and len(span) == len(boxes)
    assert len(boxes) == (3 + 2 + 3) * num_micro_batches + num_stages
    for m in map(str, range(num_micro_batches)):
        for stage in range(num_stages):
            if stage:
                assert span["forward", stage - 1, m][1] <= span["forward", stage, m][0]
                assert span["backward", stage, m][1] <= span["backward", stage - 1, m][0]
            assert span["forward", stage, m][1] <= span["backward", stage, m][0]
            if stage < 2:
                assert span["recompute", stage, m][1] == span["backward", stage, m][0]
    for lane in range(num_stages):
        mine = sorted((b.begin, b.length) for b in boxes if b.lane == lane)
        assert all(a + length <= b for (a, length), (b, _) in zip(mine, mine[1:], strict=False))


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_part_spans_then_cover_the_picture_and_main_begins_with_the_first_that_comes_back(
    num_stages,
):
    ipus = tuple(range(num_stages))
    grid = make_schedule(ScheduleKind.GROUPED, ipus, 2 * num_stages, is_training=True)
    boxes, _ = schedule_picture.boxes_of(grid, (False,) * num_stages)
    spans = schedule_picture.part_spans(grid, (False,) * num_stages)
    names = ["fill", "main", "flush", "update"] if num_stages > 1 else ["main", "update"]
    assert [name for name, _, _ in spans] == names
    assert [begin for _, begin, _ in spans] == [0.0, *(end for _, _, end in spans[:-1])]
    assert spans[-1][2] == max(box.begin + box.length for box in boxes)
    begin_of = {name: begin for name, begin, _ in spans}
    # The first backward of IPU 0 follows a forward in the same slot.
    first = next(box for box in boxes if (box.kind, box.lane, box.text) == ("backward", 0, "0"))
    assert begin_of["main"] == first.begin - 1.0


def test_schedule_picture_then_each_step_is_numbered_at_its_middle():
    grid = make_schedule(ScheduleKind.GROUPED, (0, 1, 2, 3), 8, is_training=True)
    axes = schedule_picture.draw_schedule(grid, (True,) * 4, range(4), None)
    marks = zip(axes.get_xticks(minor=True), axes.get_xticklabels(minor=True), strict=True)
    begins = [*axes.get_xticks(), axes.get_xlim()[1]]
    middles = [(low + high) / 2 for low, high in zip(begins, begins[1:], strict=False)]
    expected = [(middle, str(step)) for step, middle in enumerate(middles, start=1)]
    assert [(place, label.get_text()) for place, label in marks] == expected
    assert len(middles) == grid.num_slots == 15
    # In step 7 = 2N + 1 the first backward reaches IPU 0, for N = 3 hops.
    boxes, _ = schedule_picture.boxes_of(grid, (True,) * 4)
    first = min(box.begin for box in boxes if (box.lane, box.kind) == (0, "backward"))
    assert begins[6] < first < begins[7]
    plt.close(axes.figure)


@pytest.mark.parametrize("num_columns", [1, 3])
def test_labels_of_crowded_points_then_no_two_overlap_and_all_are_inside(num_columns):
    points = [(0.1 * (n % num_columns), float(n // 2), f"schedule {n}") for n in range(8)]
    figure, axes = plt.subplots(figsize=(8, 5))
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o")
    pictures.label_points(axes, points)
    boxes = [label.get_window_extent() for label in axes.texts]
    assert [label.get_text() for label in axes.texts] == [text for _, _, text in points]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)
    plt.close(figure)


def test_schedule_of_a_long_window_then_says_what_is_left_out():
    plan = emulator.schedule(compiled(2, 500))
    text = str(plan)
    assert "Slots 30 to 472 are not shown" in text and "0F0" in text and "0B499" in text
    assert len(text.splitlines()) < 80
    boxes, gaps = schedule_picture.boxes_of(plan.grid, plan.recomputes)
    assert len(gaps) == 1 and len(boxes) < 400
    assert plan.grid.slot_of[next(a for a in plan.grid.actions(0) if a.kind is Kind.UPDATE)] == 502
    assert len(pixels(plan.plot())) > 20


@pytest.mark.parametrize("name", schedules.NAMED)
def test_boxes_of_a_table_then_begin_when_the_action_can(name):
    plan = schedules.NAMED[name]().plan(num_ipus=3, num_micro_batches=6)
    run = free_run(plan.grid)
    boxes, gaps = schedule_picture.boxes_of_run(plan.grid, run)
    assert not gaps
    drawn = {(b.lane, b.begin): b for b in boxes if b.kind != "update"}
    assert len(drawn) == len(run.begins)
    shades = schedule_picture.shades_of(plan.grid)
    for action, begin in run.begins.items():
        box = drawn[plan.grid.ipu_of_stage[action.stage], begin]
        assert box.begin + box.length == run.ends[action]
        assert (box.kind, box.text) == (action.kind.word, str(action.micro_batch))
        assert box.shade == shades[action.stage]
    assert {b.begin for b in boxes if b.kind == "update"} == {run.end}


def test_picture_of_a_v_then_has_shades_and_weights_apart():
    plan = schedules.zero_bubble_v().plan(num_ipus=4, num_micro_batches=8)
    found = {tuple(colour) for colour in pixels(plan.plot()).tolist()}
    for kind in ("forward", "backward", "weights"):
        for shade in range(2):
            colour = pictures.shaded(TERMS[kind].colour, shade)
            assert tuple(rgb(colour)) in found, (kind, shade)
    html = plan._repr_html_()
    assert TERMS["weights"].colour in html
    assert pictures.shaded(TERMS["forward"].colour, 1) in html


def test_picture_of_a_long_table_then_leaves_out_the_middle():
    plan = schedules.gpipe().plan(num_ipus=2, num_micro_batches=200)
    boxes, gaps = schedule_picture.boxes_of_run(plan.grid, free_run(plan.grid))
    assert len(gaps) == 1 and len(boxes) < 400
    assert max(box.begin for box in boxes) == 2 * schedule_picture.MOST_SLOTS + 3
    assert not any(box.begin < gaps[0] < box.begin + box.length for box in boxes)


def test_timeline_text_then_letters_are_where_the_events_are(values, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    events = values["timeline"]
    line = next(line for line in str(events).splitlines() if line.startswith("IPU 7"))
    bar = line.removeprefix("IPU 7").strip()
    end = max(event.end_seconds for event in events)
    first = min(event.begin_seconds for event in events if event.ipu == 7)
    width = len(bar)
    idle = len(bar) - len(bar.lstrip("."))
    assert idle == pytest.approx(first / end * width, abs=1)
    assert events == tuple(events)


def test_summary_of_what_is_not_known_then_says_so(values):
    view = dict(values["summary"].view)
    bare = {"fullest_tile_bytes": None, "limit_bytes": None, "parts": None}
    view["ipus"] = [{**ipu, **bare} for ipu in view["ipus"]]
    axes = ModelReport(view).plot()
    said = [text.get_text() for one in axes for text in one.texts]
    assert said == ["memory of the tiles: not known", "how a step is spent: not known"]
    plt.close(axes[0].figure)


def test_pictures_without_matplotlib_then_the_error_names_the_extra(monkeypatch):
    real = importlib.import_module

    def fail(name: str, package: str | None = None):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real(name, package)

    monkeypatch.setattr(pictures.importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"poptorch_emu\[report\]"):
        pictures.pyplot()


def test_emulator_when_imported_then_matplotlib_is_not():
    program = (
        "import sys, poptorch_emu.emulator\n"
        "sys.exit(any(name.startswith('matplotlib') for name in sys.modules))"
    )
    assert run_forked(["-c", program]).returncode == 0


def test_table_when_too_wide_then_each_part_repeats_the_first_column():
    rows = [["name", *(f"column{n}" for n in range(9))], ["row", *(str(n) for n in range(9))]]
    lines = fitted_table(rows, 1, 40)
    parts = "\n".join(lines).split("\n\n")
    assert max(map(len, lines)) <= 40
    assert [part.splitlines()[0].split()[0] for part in parts] == ["name"] * len(parts)
    assert [cell for part in parts for cell in part.splitlines()[1].split()[1:]] == rows[1][1:]


def test_reasons_of_a_sweep_when_too_long_then_stand_below_whole(monkeypatch):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    module = Pipeline(4)
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    model = poptorch.trainingModel(module, options, optimizer)
    sweep = emulator.what_if(model, torch.randn(8, 16), sweep={"accumulation": [4, 8]})
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = str(sweep)
        assert max(map(len, text.splitlines())) <= columns
        for point in sweep.points:
            assert " ".join(point.limit.split()) in " ".join(text.split())

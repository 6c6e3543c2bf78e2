"""The drawing of the panels, by their structure: at two widths, in light and in dark."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.page_views import FAINT, NEXT_FRAME, OUTSIDE, show
from support.synthetic_reports import report

PANELS = ("summary", "timeline", "memory", "operations", "graph", "options", "log", "compare")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_panels_when_shown_then_nothing_leaves_its_card_and_all_can_be_read(
    open_page: Any, width: int, scheme: str
) -> None:
    page = open_page(report("a" * 60), report("other", factor=1.3), color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for panel in PANELS:
        show(page, panel)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, panel
        assert page.evaluate(OUTSIDE) == [], panel
        assert page.evaluate(FAINT) == [], panel


def crossing_graph(num_stages: int, directions: tuple[str, ...], density: int) -> dict[str, Any]:
    """Returns a graph of stages in these directions, with a link between every `density`th pair."""
    names = [f"{direction} {stage}" for direction in directions for stage in range(num_stages)]
    stages = [
        {**report()["graph"]["stages"][0], "name": name, "direction": name.split()[0],
         "stage": int(name.split()[1]), "ipu": int(name.split()[1])}
        for name in names
    ]  # fmt: skip
    pairs = [(a, b) for a in names for b in names if a != b]
    edges = [
        {"from": a, "to": b, "bytes": 1023 * 1024 * (1 + at % 7), "tensors": []}
        for at, (a, b) in enumerate(pairs)
        if at % density == 0
    ]
    return {"stages": stages, "edges": edges}


# Left, top, right and bottom of boxes and labels, and of the picture.
GRAPH = """() => {
  const rectangle = (each) => {
    const { left, top, right, bottom } = each.getBoundingClientRect();
    return [left, top, right, bottom];
  };
  const all = (selector) => [...document.querySelectorAll(selector)].map(rectangle);
  const texts = [...document.querySelectorAll('.graph .way-label')].map((label) =>
    label.querySelector('text').getBBox().width <= label.querySelector('rect').getBBox().width);
  return { boxes: all('.graph .box rect'), labels: all('.graph .way-label rect'),
    lines: all('.graph .way'), picture: all('.graph svg')[0], areLabelsWide: texts.every(Boolean) };
}"""


def do_overlap(one: list[float], other: list[float]) -> bool:
    return all(one[axis] < other[axis + 2] and other[axis] < one[axis + 2] for axis in (0, 1))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("num_stages", "directions", "density"),
    [
        (1, ("forward",), 1),
        (4, ("forward", "backward"), 1),
        (5, ("forward", "recompute", "backward"), 7),
        (4, ("forward", "recompute", "backward", "weights"), 3),
        (16, ("forward", "backward"), 11),
        (3, ("forward", "somewhere"), 1),
    ],
)
def test_graph_when_all_crosses_then_no_label_covers_a_box_and_nothing_leaves_the_picture(
    open_page: Any, num_stages: int, directions: tuple[str, ...], density: int, width: int
) -> None:
    data = report()
    data["graph"] = crossing_graph(num_stages, directions, density)
    page = open_page(data)
    page.set_viewport_size({"width": width, "height": 900})
    show(page, "graph")
    drawn = page.evaluate(GRAPH)
    boxes, labels, (left, top, right, bottom) = drawn["boxes"], drawn["labels"], drawn["picture"]
    assert len(boxes) == num_stages * len(directions)
    assert len(labels) == len(data["graph"]["edges"]) and drawn["areLabelsWide"]
    for at, label in enumerate(labels):
        assert not any(do_overlap(label, box) for box in boxes)
        assert not any(do_overlap(label, other) for other in labels[at + 1 :])
    for box in (*boxes, *labels, *drawn["lines"]):
        assert left <= box[0] and box[2] <= right and top <= box[1] and box[3] <= bottom


def test_graph_when_a_stage_has_the_focus_then_its_tip_is_told_and_all_else_is_faint(
    open_page: Any,
) -> None:
    page = open_page(report())
    show(page, "graph")
    page.focus(".graph .box[aria-label^='forward 1']")
    assert "layer3, layer4, layer5" in page.inner_text(".float-tip")
    # One of the 4 + 4 boxes is lit. Of the 10 lines, three are lit: one enters this box, two leave
    # it.
    assert page.locator(".graph .box.faint").count() == 7
    assert page.locator(".graph .way.faint").count() == 7
    page.hover("h1")
    page.focus("#theme")
    assert page.locator(".graph .faint").count() == 0 and not page.is_visible(".float-tip")


def test_memory_when_drawn_then_strips_name_directions_and_blocks_of_the_steps(
    open_page: Any,
) -> None:
    data = report()
    page = open_page(data)
    show(page, "memory")
    page.click("button:has-text('IPU 2')")
    strips = page.evaluate(
        "() => STRIP_NAMES.map((n) => runsOf(page.report().memory.ipus[2].steps[n]))"
    )
    directions = [(run["value"], run["start"], run["end"]) for run in strips[0]]
    assert directions == [
        ("forward", 0, 24),
        ("recompute", 24, 32),
        ("backward", 32, 59),
        ("update", 59, 60),
    ]
    assert [run["value"] for run in strips[1]] == ["layer6", "layer7", "layer8", ""]
    option = page.evaluate("""() => {
      const host = document.querySelector('[aria-label^="Area: memory of IPU 2"]');
      const { series, xAxis } = echarts.getInstanceByDom(host).getOption();
      const strips = series.find((one) => one.id === 'strips');
      return [strips.data.length, xAxis.map((one) => one.axisLabel?.show)];
    }""")
    assert option[0] == 4 + 4 and option[1][0] is False


def test_shares_when_numbers_are_of_different_width_then_bars_stand_below_each_other(
    open_page: Any,
) -> None:
    data = report(num_operations=120)
    data["operations"]["cycles"][0] = 10**7
    page = open_page(data)
    show(page, "operations")
    for button in (None, "Unfold all", "All"):
        if button:
            page.click(f"button:has-text('{button}')")
        lefts = page.evaluate(
            """() => [...document.querySelectorAll('main td .bar')]
                .map((bar) => bar.getBoundingClientRect().left)"""
        )
        assert len(lefts) >= 12 and max(lefts) - min(lefts) < 0.5


def test_blocks_when_there_are_many_then_each_has_a_bar_in_the_order_of_the_model(
    open_page: Any,
) -> None:
    data = report()
    page = open_page(data)
    show(page, "operations")
    names = page.evaluate("""() => {
      const host = document.querySelector('[aria-label="Bars: cycles by block"]');
      return echarts.getInstanceByDom(host).getOption().yAxis[0].data;
    }""")
    assert names == [f"layer{number}" for number in range(12)]


def test_tabs_when_addressed_then_the_panel_is_shown_and_the_browser_goes_back(
    open_page: Any,
) -> None:
    page = open_page(report())
    assert page.get_attribute("#tab-summary", "aria-selected") == "true"
    for panel in ("memory", "graph"):
        show(page, panel)
        assert page.evaluate("() => location.hash") == f"#{panel}"
    page.go_back()
    page.wait_for_selector("#tab-memory[aria-selected=true]")
    page.evaluate("() => { location.hash = '#log'; }")
    page.wait_for_selector("#tab-log[aria-selected=true]")
    page.evaluate("() => { location.hash = '#nowhere'; }")
    page.evaluate(NEXT_FRAME)
    assert page.get_attribute("#tab-log", "aria-selected") == "true"
    page.goto(page.url.partition("#")[0] + "#options")
    page.reload()
    page.wait_for_selector("#tab-options[aria-selected=true]")


def test_comparison_when_a_block_moved_then_its_operations_are_the_same(open_page: Any) -> None:
    first, second = report(), report()
    second["written"] = "2026-02-03 12:00:00"
    columns = second["operations"]
    moved = [at for at, block in enumerate(columns["block"]) if block == "layer3"]
    for at in moved:
        columns["ipu"][at] = 0
        columns["segment"][at] = columns["segment"][at].split()[0] + " 0"
    slower = columns["name"].index("encoder.7.mlp.141: mm")
    columns["cycles"][slower] += 5_000
    page = open_page(first, second, files=("before.html", "after.html"))
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"
    switch = page.locator("#report-switch button").all_inner_texts()
    assert switch == ["before.html, 10:11:12", "after.html, 12:00:00"]
    table = page.locator("main .card[aria-label='Operations that differ']").inner_text()
    assert "absent" not in table and "1 of 1" in table and "+5,000" in table
    sentences = page.locator(".sentences li").all_inner_texts()
    assert sentences[0].startswith("after.html, 12:00:00 is as fast as before.html, 10:11:12")
    assert "One operation differs: encoder.7.mlp.141: mm (forward), by +5,000 cycles." in sentences


def test_comparison_when_one_is_slower_then_the_first_sentence_says_how_much_and_where(
    open_page: Any,
) -> None:
    first, second = report("first"), report("second")
    second["speed"]["predicted_rows_per_second"] = first["speed"]["predicted_rows_per_second"] / 2
    for ipu in second["ipus"]:
        ipu["parts"]["link"] += 4e-3
    page = open_page(first, second)
    sentence = page.locator(".sentences li").first.inner_text()
    assert "second, 10:11:12 is 0.5 × as fast as first, 10:11:12" in sentence
    # The added time is 4 ms for 96 rows.
    assert "The time for link (data from other IPUs of the replica) changed most" in sentence
    assert "on average, an IPU spends 41.7 µs more on each row" in sentence


def test_comparison_when_nothing_differs_then_it_says_so(open_page: Any) -> None:
    data = copy.deepcopy(report())
    data["speed"] = dict.fromkeys(data["speed"])
    page = open_page(data, copy.deepcopy(data))
    assert "All values that both reports contain are equal." in page.inner_text("main")


def test_options_when_some_are_set_then_they_come_first_and_defaults_are_apart(
    open_page: Any,
) -> None:
    data = report()
    data["options"].append(["machine.version", "21", None])
    page = open_page(data)
    show(page, "options")
    tables = [table.inner_text() for table in page.locator("main table").all()]
    assert "Training.gradientAccumulation" in tables[0] and "12" in tables[0]
    assert "deviceIterations" in tables[1] and "deviceIterations" not in tables[0]
    assert "machine.version" in tables[2] and "changed" not in "".join(tables).lower()

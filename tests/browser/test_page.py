"""The page in a real browser: its charts, and the effects of mouse and keys."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.page_views import NEXT_FRAME, go_to_operation, show
from support.synthetic_reports import report

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.log import logger
from poptorch_emu.report.page.page_file import read_reports, to_html
from poptorch_emu.report.terms import TERMS

PANELS = ("summary", "timeline", "memory", "operations", "graph", "numbers", "options", "log")
# Number of charts in each panel that draws charts.
NUM_CHARTS = {"summary": 2, "timeline": 1, "memory": 4, "operations": 2, "compare": 4}

# Returns the number of different colours on each canvas of the panel.
COLOURS = """() => [...document.querySelectorAll('main .chart canvas')].map((canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
})"""


def first_cells(page: Any, table: int = 0) -> list[str]:
    rows = page.locator("main table").nth(table).locator("tbody tr")
    return [row.locator("td").first.inner_text() for row in rows.all()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_panel_when_shown_then_its_charts_are_not_blank(open_page: Any, scheme: str) -> None:
    page = open_page(report(), report("other", factor=1.3), color_scheme=scheme)
    for panel in (*PANELS, "compare"):
        show(page, panel)
        drawn = page.evaluate(COLOURS)
        assert len(drawn) == NUM_CHARTS.get(panel, 0), panel
        # A blank canvas has one colour, and text alone has about twenty shades of one colour.
        assert all(colours > 30 for colours in drawn), (panel, drawn)
        assert page.locator("main .card").count() > 0


def test_theme_when_the_button_is_pressed_then_ground_and_charts_change(open_page: Any) -> None:
    page = open_page(report(), color_scheme="light")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    picture = "() => document.querySelector('main canvas').toDataURL()"
    before = page.evaluate(ground), page.evaluate(picture)
    page.click("#theme")
    page.evaluate(NEXT_FRAME)
    after = page.evaluate(ground), page.evaluate(picture)
    assert before[0] == "rgb(245, 246, 249)" and after[0] == "rgb(14, 17, 24)"
    assert before[1] != after[1]


def test_patterns_when_switched_off_then_the_charts_have_fewer_colours(open_page: Any) -> None:
    page = open_page(report())
    show(page, "timeline")
    (with_patterns,) = page.evaluate(COLOURS)
    page.click("#patterns")
    page.evaluate(NEXT_FRAME)
    (without,) = page.evaluate(COLOURS)
    assert without < with_patterns


def test_narrow_page_when_shown_then_words_stay_whole(open_page: Any) -> None:
    page = open_page(report(), report("other"))
    page.set_viewport_size({"width": 420, "height": 900})
    for panel in (*PANELS, "compare"):
        show(page, panel)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 420, panel
    show(page, "options")
    # A name without spaces is one line high.
    heights = page.evaluate(
        """() => [...document.querySelectorAll('main tbody td:first-child')].map((cell) => {
      const range = document.createRange();
      range.selectNodeContents(cell);
      return range.getClientRects().length;
    })"""
    )
    assert heights and set(heights) == {1}


def test_hatches_of_the_table_then_each_has_a_pattern_of_its_own(open_page: Any) -> None:
    page = open_page(report())
    patterns = page.evaluate("() => Object.values(PATTERNS).map((one) => JSON.stringify(one))")
    assert len(set(patterns)) == len(patterns)
    missing = "() => Object.values(TERMS).filter((term) => !(term.hatch in PATTERNS))"
    assert page.evaluate(missing) == []


# Returns the word and the colour of each series and each bar in the charts of the panel.
DRAWN = """() => [
    ...[...charts].filter((entry) => entry.chart).flatMap((entry) =>
      entry.chart.getOption().series.map((one) => [one.name, one.itemStyle?.color])),
    ...[...document.querySelectorAll('.graph .box')].map((box) =>
      [box.querySelector('text').textContent.split(' ')[0],
        box.querySelector('rect').getAttribute('fill')]),
  ].filter(([name, colour]) => name in TERMS && colour)"""


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_panels_then_each_word_has_the_colour_of_the_table(open_page: Any, ground: str) -> None:
    page = open_page(report(), report("again"), color_scheme=ground)
    seen = set()
    for panel in (*PANELS, "compare"):
        show(page, panel)
        for word, colour in page.evaluate(DRAWN):
            term = TERMS[word]
            assert colour == (term.colour if ground == "light" else term.colour_on_dark), panel
            seen.add(word)
    assert seen >= {"compute", "ramp", "always live", "not always live", "forward", "backward"}
    show(page, "timeline")
    shapes = """() => page.timeline.chart.getOption().series[0].data
        .map((shape) => [KINDS[shape[3]], termColour(KINDS[shape[3]])])"""
    for word, colour in page.evaluate(shapes):
        assert colour in (TERMS[word].colour, TERMS[word].colour_on_dark)


def test_tabs_when_keys_are_pressed_then_the_panel_changes(open_page: Any) -> None:
    page = open_page(report())
    page.focus("#tab-summary")
    for panel in (*PANELS[1:], "summary"):
        page.keyboard.press("ArrowRight")
        focused = page.evaluate("() => document.activeElement.id")
        assert focused == f"tab-{panel}"
        assert page.get_attribute(f"#tab-{panel}", "aria-selected") == "true"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tab_of_the_panel_when_the_screen_is_narrow_then_it_is_in_sight(
    open_page: Any, scheme: str
) -> None:
    page = open_page(report(), color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    for panel in ("log", "summary", "graph"):
        page.evaluate(f"location.hash = '{panel}'")
        page.wait_for_selector(f"#tab-{panel}[aria-selected=true]")
        box = page.locator(f"#tab-{panel}").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_table_when_sorted_then_rows_are_in_order_with_unknowns_last(open_page: Any) -> None:
    page = open_page(report(num_operations=110))
    show(page, "operations")
    page.click("button:has-text('All')")
    cells = "td:nth-child(3)"
    for press in (False, True):
        if press:
            page.click("[data-sort=cycles]")
        texts = page.locator(f"main tbody tr {cells}").all_inner_texts()
        known = [int(text.replace(",", "")) for text in texts if text != "not known"]
        assert texts[len(known) :] == ["not known"] * 10
        assert known == sorted(known, reverse=not press) and len(known) == 100
    assert page.get_attribute("th:has([data-sort=cycles])", "aria-sort") == "ascending"


def test_table_when_searched_then_only_what_matches_stays(open_page: Any) -> None:
    page = open_page(report())
    show(page, "operations")
    page.click("button:has-text('All')")
    page.fill("input[type=search]", "mlp.1")
    names = first_cells(page)
    assert names and all(".MLP.1" in name.upper() for name in names)
    page.fill("input[type=search]", "no such thing")
    assert first_cells(page) == ["Nothing matches."]


def test_table_when_unfolded_by_key_then_the_members_of_the_group_appear(open_page: Any) -> None:
    page = open_page(report())
    show(page, "operations")
    folded = first_cells(page)
    assert len(folded) == 12 and all("layer" in name for name in folded)
    page.focus("tbody button[data-group=layer3]")
    page.keyboard.press("Enter")
    assert len(first_cells(page)) == 12 + 20
    focused = page.evaluate("() => document.activeElement.dataset.group")
    assert focused == "layer3"
    page.keyboard.press("Enter")
    assert first_cells(page) == folded


def test_group_when_folded_then_it_shows_the_sum_of_what_is_known(open_page: Any) -> None:
    data = report(num_operations=24)
    page = open_page(data)
    show(page, "operations")
    columns = data["operations"]
    rows = zip(columns["block"], columns["cycles"], strict=True)
    expected = sum(cycles or 0 for block, cycles in rows if block == "layer5")
    text = page.locator("tr.group:has([data-group=layer5]) td").nth(1).inner_text()
    # One of the two operations of this block has no known cost, so the sum is a lower bound.
    assert text == f"≥ {expected:,}"


def test_operation_when_clicked_then_the_timeline_shows_its_segment(open_page: Any) -> None:
    page = open_page(report())
    go_to_operation(page, "mlp.237: mm")
    assert page.get_attribute("#tab-timeline", "aria-selected") == "true"
    assert "encoder.11.mlp.237: mm runs in forward 3." in page.inner_text(".detail-line")
    first, last = page.evaluate("() => page.timeline.range")
    assert last - first < 100_000


def test_memory_when_another_ipu_is_chosen_and_tiles_are_sorted_then_charts_follow(
    open_page: Any,
) -> None:
    page = open_page(report())
    show(page, "memory")
    page.click("button:has-text('IPU 1')")
    page.click("button:has-text('Sorted')")
    page.evaluate(NEXT_FRAME)
    sums = page.evaluate("""() => {
      const host = document.querySelector('[aria-label^="Bars: memory of each tile of IPU 1"]');
      const series = echarts.getInstanceByDom(host).getOption().series;
      return series[0].data.map((_, at) => series.reduce((sum, one) => sum + one.data[at], 0));
    }""")
    assert len(sums) == 1472 and sums == sorted(sums, reverse=True)


def test_tiles_when_a_category_is_chosen_then_only_its_bytes_are_drawn(open_page: Any) -> None:
    data = report()
    page = open_page(data)
    show(page, "memory")
    drawn = """() => {
      const host = document.querySelector('[aria-label^="Bars: memory of each tile of IPU"]');
      const series = echarts.getInstanceByDom(host).getOption().series;
      return series.map((one) => [one.name, one.data]);
    }"""
    assert [name for name, _ in page.evaluate(drawn)] == ["weights", "code", "activations"]
    page.focus("[aria-label=Category] button:has-text('code')")
    page.keyboard.press("Enter")
    page.evaluate(NEXT_FRAME)
    ((name, held),) = page.evaluate(drawn)
    chosen = page.inner_text("[aria-label=IPU] [aria-pressed=true]")
    (memory,) = (ipu for ipu in data["memory"]["ipus"] if f"IPU {ipu['ipu']}" == chosen)
    assert name == "code" and held == [bytes_ for bytes_, _ in memory["tiles"]["code"]]


TREEMAP = """() => {
  const host = document.querySelector('[aria-label^="Treemap"]');
  const [series] = echarts.getInstanceByDom(host).getOption().series;
  return series.data.map((group) => [group.name,
    group.children.map((one) => [one.name, one.value, one.itemStyle.color === colour("card")])]);
}"""


def test_fullest_tile_then_the_treemap_has_each_value_and_search_fades_the_others(
    open_page: Any,
) -> None:
    data = report()
    page = open_page(data)
    show(page, "memory")
    chosen = page.inner_text("[aria-label=IPU] [aria-pressed=true]")
    (memory,) = (ipu for ipu in data["memory"]["ipus"] if f"IPU {ipu['ipu']}" == chosen)
    columns = memory["fullest_tile"]
    drawn = page.evaluate(TREEMAP)
    blocks = dict.fromkeys(block or "no block" for block in columns["block"])
    assert [name.partition(": ")[0] for name, _ in drawn] == list(blocks)
    leaves = sorted([name, size] for _, children in drawn for name, size, _ in children)
    known = zip(columns["name"], columns["tile_bytes"], strict=True)
    assert leaves == sorted([name, size] for name, size in known if size)
    tile = page.locator("#fullest-tile")
    tile.locator("input[type=search]").fill("mlp.first.weight")
    faded = {name: is_faded for _, group in page.evaluate(TREEMAP) for name, _, is_faded in group}
    shown = {name for name, is_faded in faded.items() if not is_faded}
    assert shown == {name for name in columns["name"] if "mlp.first.weight" in name}
    assert len(shown) < len(faded)
    # The keyboard reaches the groups, and the picture follows.
    tile.locator("button:has-text('Kind')").first.focus()
    page.keyboard.press("Enter")
    parts = dict.fromkeys(columns["part"])
    assert [name.partition(": ")[0] for name, _ in page.evaluate(TREEMAP)] == list(parts)


def test_fullest_tile_of_an_earlier_report_then_it_is_not_known(open_page: Any) -> None:
    data = report()
    for ipu in data["memory"]["ipus"]:
        ipu["fullest_tile"] = None
    page = open_page(data)
    show(page, "memory")
    assert "What the fullest tile holds is not known." in page.inner_text("main")


def test_comparison_when_two_reports_are_given_then_differences_are_told(open_page: Any) -> None:
    first, second = report("first"), report("second", factor=1.25)
    second["machine"]["system"], second["fits"] = "<i>bow-pod16", not first["fits"]
    page = open_page(first, second)
    show(page, "compare")
    rows = page.locator("main table").first.locator("tbody tr").all_inner_texts()
    cells = {row.split("\t")[0]: row.split("\t")[1:] for row in rows}
    step = [cell.strip() for cell in cells["Predicted step"]]
    assert step == ["39.8 ms", "49.8 ms", "+9.95 ms", "1.250 ×"]
    assert [cell.strip() for cell in cells["Measured step"]] == ["not known"] * 4
    findings = page.locator("main table:has-text('Finding')").inner_text()
    assert "<i>bow-pod16" in findings and "Fits" in findings and "Mode" not in findings
    options = page.locator("main table").last.inner_text()
    assert "gradientAccumulation" in options and "deviceIterations" not in options
    page.click("#report-switch button:has-text('second')")
    assert page.inner_text("#model-name") == "second"


def test_unknown_when_a_report_holds_little_then_every_panel_says_so(open_page: Any) -> None:
    bare = report()
    bare.update(
        timelines=[], operations={}, options=[], log=[], ipus=[], fits=None, bottleneck=None
    )
    bare["memory"] = {"ipus": [], "ways_out": [], "steps_note": ""}
    bare["graph"] = {"stages": [], "edges": []}
    bare["speed"] = dict.fromkeys(bare["speed"])
    bare["machine"] = dict.fromkeys(bare["machine"])
    page = open_page(bare)
    for panel in PANELS[:-1]:
        show(page, panel)
        text = page.inner_text("main")
        assert "not known" in text, panel
        assert "0 B" not in text and "0 rows" not in text and "NaN" not in text


class Stages(torch.nn.Module):
    """Two layers, each on an IPU of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        for ipu, layer in enumerate(self.layers):
            with poptorch.Block(f"block{ipu}", ipu_id=ipu):
                x = layer(x)
                if ipu == 1:
                    return x, torch.nn.functional.mse_loss(x, y)
        raise AssertionError("the last block returns")


@pytest.mark.feature("emulator.page", fidelity="modelled")
def test_page_of_a_model_when_opened_then_each_panel_is_drawn_and_operations_lead_to_events(
    open_page: Any, tmp_path: Path
) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.enableProfiling(str(tmp_path / "profile")).Training.gradientAccumulation(4)
    module = Stages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.01)
    model = poptorch.trainingModel(module, options, optimizer)
    model(*torch.randn(2, 16, 64))
    (data,) = read_reports(emulator.page(model, tmp_path / "model.html"))
    page = open_page(data)
    for panel in PANELS:
        show(page, panel)
        assert all(colours > 10 for colours in page.evaluate(COLOURS)), panel
    show(page, "timeline")
    page.click("button:has-text('Engine, in seconds')")
    page.evaluate(NEXT_FRAME)
    assert page.evaluate("() => page.timeline.timeline.unit") == "seconds"
    show(page, "operations")
    page.click("button:has-text('Unfold all')")
    page.locator("button.link").first.click()
    page.evaluate(NEXT_FRAME)
    assert " runs in " in page.inner_text(".detail-line")


def test_page_of_a_run_with_tracepoints_then_they_have_a_lane_and_the_log_is_shown(
    open_page: Any, tmp_path: Path
) -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.enableProfiling(str(tmp_path / "profile"))
    model = poptorch.inferenceModel(torch.nn.Linear(8, 8), options)
    model(torch.randn(2, 8))
    with poptorch.profiling.Channel("loader").tracepoint("read a file"):
        model(torch.randn(2, 8))
    logger.warning("a line for the log")
    (data,) = read_reports(emulator.page(model, tmp_path / "model.html"))
    page = open_page(data)
    show(page, "timeline")
    page.click("button:has-text('Engine, in seconds')")
    page.evaluate(NEXT_FRAME)
    drawn = """() => page.timeline.chart.getOption().series[0].data
        .map((shape) => [shape[0], KINDS[shape[3]]])"""
    assert [1, "tracepoint"] in page.evaluate(drawn)
    assert page.locator(".legend button:has-text('tracepoint')").count() == 1
    show(page, "log")
    assert "a line for the log" in page.inner_text("main table")
    show(page, "memory")
    assert "1,472 tiles at the peak" in page.inner_text("main")


HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script><!--{{data}}"


def poisoned(value: Any) -> Any:
    """Returns a report with every text of the user replaced."""
    if isinstance(value, dict):
        kept = ("kind", "key", "unit", "direction", "level", "live")
        return {key: item if key in kept else poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_names_when_hostile_then_they_are_text(open_page: Any) -> None:
    data = poisoned(copy.deepcopy(report()))
    for edge in data["graph"]["edges"]:
        edge.update({"from": HOSTILE, "to": HOSTILE})
    data["graph"]["stages"] = data["graph"]["stages"][:1]
    data["graph"]["edges"] = data["graph"]["edges"][:1]
    data["insights"] = [{"kind": "note", "text": HOSTILE}]
    other = copy.deepcopy(data)
    other["options"] = [[HOSTILE + "2", HOSTILE, HOSTILE]]
    page = open_page(data, other)
    assert page.inner_text("#model-name") == HOSTILE
    for panel in (*PANELS, "compare"):
        show(page, panel)
        box = page.locator("main .chart canvas")
        if box.count():
            box.first.hover()
            page.evaluate(NEXT_FRAME)
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3


def test_page_when_100000_events_then_each_picture_costs_little(open_page: Any) -> None:
    """Counts the work of a picture, because times depend on the computer and its load."""
    data = report(num_events=100_000)
    assert len(to_html([data]).encode()) < 30e6
    page = open_page(data)
    show(page, "timeline")
    assert page.locator("*").count() < 1_000
    draws, shapes, reads, num_events = page.evaluate("""async () => {
      const view = page.timeline;
      const { index } = view;
      let [draws, reads] = [0, 0];
      const draw = view.draw.bind(view);
      view.draw = () => { draws += 1; draw(); };
      for (let press = 0; press < 5; press += 1) view.zoom(0.5);
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      const starts = new Proxy(index.starts, { get: (all, at) => { reads += 1; return all[at]; } });
      visibleShapes({ ...index, starts }, ...view.range, 1000, new Set());
      return [draws, view.chart.getOption().series[0].data.length, reads, index.starts.length];
    }""")
    # Five zooms before a frame are one picture, which looks at the events of its range alone.
    assert draws == 1
    assert shapes < 9_500
    assert num_events >= 100_000 and 0 < reads < 2 * num_events / 2**5

"""The page's timeline in a real browser: its drawing, and the effects of mouse and keys."""

from __future__ import annotations

from typing import Any

import pytest
from support.page_views import NEXT_FRAME, go_to_operation, show
from support.synthetic_reports import report


def test_timeline_when_zoomed_by_keys_and_wheel_then_the_range_follows(open_page: Any) -> None:
    page = open_page(report())
    show(page, "timeline")
    view = "() => page.timeline.range"
    whole = page.evaluate(view)
    page.focus(".plot")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.evaluate(NEXT_FRAME)
    zoomed = page.evaluate(view)
    half = (whole[1] - whole[0]) / 2
    # The zoom shows the middle half, and the arrow key then moves by a fifth of it to the right.
    assert zoomed == pytest.approx([half / 2 + 0.2 * half, 1.5 * half + 0.2 * half])
    shown = page.evaluate("() => page.timeline.chart.getOption().dataZoom[0]")
    assert [shown["startValue"], shown["endValue"]] == pytest.approx(zoomed)
    page.hover(".plot canvas")
    page.mouse.wheel(0, -400)
    page.wait_for_function("(end) => page.timeline.range[1] !== end", arg=zoomed[1])
    wheeled = page.evaluate(view)
    assert wheeled[1] - wheeled[0] < zoomed[1] - zoomed[0]
    page.keyboard.press("0")
    page.evaluate(NEXT_FRAME)
    assert page.evaluate(view) == whole


def test_timeline_when_stepped_by_keys_then_it_tells_all_about_an_event(open_page: Any) -> None:
    page = open_page(report())
    show(page, "timeline")
    page.focus(".plot")
    page.keyboard.press("n")
    page.keyboard.press("n")
    text = page.inner_text(".detail-line")
    # The second event of IPU 0: the forward of micro-batch 0, after 3,000 cycles of exchange.
    assert "forward 0 · 0" in text
    for part in (
        "IPU 0",
        "micro-batch 0",
        "starts at 3,000 cycles",
        "train.py:20",
        "bytes not known",
    ):
        assert part in text


def test_timeline_when_hovered_then_a_tip_names_the_event(open_page: Any) -> None:
    page = open_page(report())
    show(page, "timeline")
    at = page.evaluate("""() => {
      const pixel = page.timeline.chart.convertToPixel({ gridIndex: 0 }, [1500000, 2]);
      const box = document.querySelector('.plot canvas').getBoundingClientRect();
      return [box.x + pixel[0], box.y + pixel[1]];
    }""")
    page.mouse.move(*at)
    page.wait_for_selector(".tip")
    tip = page.inner_text(".tip")
    assert "IPU 2" in tip and "micro-batch" in tip and "cycles" in tip


def test_timeline_when_a_kind_is_switched_off_then_none_of_it_is_drawn(open_page: Any) -> None:
    page = open_page(report())
    show(page, "timeline")
    kinds = """() => [...new Set(page.timeline.chart.getOption().series[0].data
        .filter((shape) => shape[6] < 0).map((shape) => KINDS[shape[3]]))].sort()"""
    before = page.evaluate(kinds)
    page.click(".legend button:has-text('backward')")
    page.evaluate(NEXT_FRAME)
    assert "backward" in before
    assert page.evaluate(kinds) == [kind for kind in before if kind != "backward"]


def test_shapes_when_many_are_put_together_then_no_event_is_lost(open_page: Any) -> None:
    page = open_page(report(num_events=20_000))
    show(page, "timeline")
    counts = page.evaluate("""() => {
      const index = page.timeline.index;
      const shapes = visibleShapes(index, 0, index.end, 1000, new Set());
      const sum = shapes.filter((shape) => shape[6] < 0).reduce((sum, shape) => sum + shape[5], 0);
      return [sum, index.starts.length, shapes.length];
    }""")
    assert counts[0] == counts[1] >= 20_000
    assert counts[2] < 9_500


def test_timeline_when_zoomed_far_then_operations_are_drawn_below_their_event(
    open_page: Any,
) -> None:
    page = open_page(report())
    go_to_operation(page, "mlp.237: mm")
    parts = page.evaluate("""() => page.timeline.chart.getOption().series[0].data
        .filter((shape) => shape[6] >= 0 && shape[4] === page.timeline.selected)
        .map((shape) => shape.slice(1, 3))""")
    # Half of the sixty operations of a stage are forward, and two or three have no known cost.
    assert 25 <= len(parts) <= 30
    assert all(
        first[1] <= second[0] + 1e-6 for first, second in zip(parts, parts[1:], strict=False)
    )


MICRO_BATCH_UNDER_MOUSE = """(micro) => {
  const view = page.timeline;
  const { tags, kinds } = view.index;
  const event = tags.findIndex((tag, at) => tag === micro && KINDS[kinds[at]] === 'backward');
  const time = (view.index.starts[event] + view.index.ends[event]) / 2;
  const lane = view.timeline.columns.lane[event];
  const pixel = view.chart.convertToPixel({ gridIndex: 0 }, [time, lane]);
  const box = document.querySelector('.plot canvas').getBoundingClientRect();
  return [box.x + pixel[0], box.y + pixel[1]];
}"""
# Lanes and micro-batches of the shapes that are not faint.
LIT = """() => page.timeline.chart.getOption().series[0].data
    .filter((shape) => shape[6] < 0 && !page.timeline.isFaint(shape[4]))
    .map((shape) => [shape[0], page.timeline.timeline.columns.micro_batch[shape[4]]])"""


def one_window() -> dict[str, Any]:
    """Returns a report whose timeline has one window."""
    return report(num_events=100)


def test_micro_batch_when_hovered_then_it_is_lit_on_all_ipus_and_the_rest_is_faint(
    open_page: Any,
) -> None:
    page = open_page(one_window())
    show(page, "timeline")
    assert len(page.evaluate(LIT)) > 100
    page.mouse.move(*page.evaluate(MICRO_BATCH_UNDER_MOUSE, 7))
    page.wait_for_function("() => page.timeline.lit === 7")
    page.evaluate(NEXT_FRAME)
    lit = page.evaluate(LIT)
    assert {lane for lane, _ in lit} == {0, 1, 2, 3} and {micro for _, micro in lit} == {7}
    page.wait_for_selector(".tip")
    page.mouse.move(5, 5)
    page.wait_for_function("() => page.timeline.lit === -1")


def test_micro_batch_when_followed_then_steps_go_from_its_first_stage_to_its_last(
    open_page: Any,
) -> None:
    page = open_page(one_window())
    show(page, "timeline")
    page.fill("[aria-label='Micro-batch to follow']", "4")
    page.keyboard.press("Enter")
    page.evaluate(NEXT_FRAME)
    told = page.inner_text(".detail-line")
    assert "Micro-batch 4" in told and "IPU 0, IPU 1, IPU 2, IPU 3" in told
    assert {micro for _, micro in page.evaluate(LIT)} == {4}
    page.click("h2")
    lanes = []
    for _ in range(16):
        page.keyboard.press("n")
        lanes.append(
            page.evaluate("() => page.timeline.timeline.columns.lane[page.timeline.selected]")
        )
    # Through the stages and back: exchange and forward, then recomputation and backward.
    assert lanes == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 2, 2, 1, 1, 0, 0]
    page.keyboard.press("f")
    assert page.evaluate("() => page.timeline.followed") == -1


def test_timeline_when_several_updates_are_shown_then_micro_batches_of_each_are_apart(
    open_page: Any,
) -> None:
    page = open_page(one_window())
    show(page, "timeline")
    count = "() => [page.timeline.index.starts.length, page.timeline.index.end]"
    events, end = page.evaluate(count)
    page.click("button:has-text('Several updates')")
    page.evaluate(NEXT_FRAME)
    assert page.evaluate(count) == [3 * events, 3 * end]
    tags = page.evaluate("() => [...new Set(page.timeline.index.tags)].sort((a, b) => a - b)")
    assert tags == [-1, *range(3 * 12)]
    page.click("button:has-text('Engine, in seconds')")
    assert not page.is_visible("button:has-text('Several updates')")


def test_keys_when_the_plot_has_no_focus_then_they_still_move_the_timeline(
    open_page: Any,
) -> None:
    page = open_page(report(), report("other"))
    for panel in ("timeline", "compare"):
        show(page, panel)
        view = "() => page.timelines.map((each) => each.range[1] - each.range[0])"
        whole = page.evaluate(view)
        page.keyboard.press("w")
        assert page.evaluate(view) == [length / 2 for length in whole]
        first = page.evaluate("() => page.timeline.range[0]")
        page.keyboard.press("a")
        assert page.evaluate("() => page.timeline.range[0]") < first
        page.keyboard.press("d")
        assert page.evaluate("() => page.timeline.range[0]") == pytest.approx(first)
        page.keyboard.press("s")
        assert page.evaluate(view) == pytest.approx(whole)
    # The keys have no effect while a word is typed, or in a panel without a timeline.
    show(page, "operations")
    page.fill("input[type=search]", "w")
    page.keyboard.press("s")
    assert page.input_value("input[type=search]") == "ws"


def test_clock_when_switched_then_all_panels_tell_seconds_and_tips_tell_both(
    open_page: Any,
) -> None:
    page = open_page(report())
    seconds = 42_000 / report()["machine"]["clock_hz"]
    assert page.evaluate("() => cyclesText(42000)") == "42 k cycles"
    page.click("#clock")
    assert page.get_attribute("#clock", "aria-pressed") == "true"
    assert page.evaluate("() => cyclesText(42000)") == f"{seconds * 1e6:.3g} µs"
    assert (
        page.evaluate("() => cyclesAndTimeText(42000)") == f"42,000 cycles, {seconds * 1e6:.3g} µs"
    )
    show(page, "timeline")
    shown = page.inner_text(".range")
    # The range and the whole are shown in the same unit.
    assert "cycles" not in shown and "s of" in shown
    assert shown.split(" to ")[1].split(" of ")[0] == shown.split(" of ")[1]
    show(page, "operations")
    assert "Time" in page.inner_text("main thead") and "Cycles" not in page.inner_text("main thead")
    page.click("#clock")
    page.evaluate(NEXT_FRAME)
    assert "Cycles" in page.inner_text("main thead")
    show(page, "timeline")
    shown = page.inner_text(".range")
    assert shown.split(" to ")[1].split(" of ")[0] == shown.split(" of ")[1]

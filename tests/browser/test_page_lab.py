"""The laboratory in a real browser: it asks, shows and explains; frames of notebooks take pages."""

from __future__ import annotations

import html
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.page_views import NEXT_FRAME, PATIENCE_MS
from support.synthetic_reports import report, timeline

from poptorch_emu.emulator.live_lab import LiveLab
from poptorch_emu.report.page.lab_view import bench_view
from poptorch_emu.report.page.page_file import lab_to_html, to_html
from poptorch_emu.report.page.page_server import PageServer

HOSTILE = "<img src=x onerror=alert(1)>"


def point(waits: float) -> dict[str, Any]:
    return {
        "fault": None,
        "clock_hz": 1e9,
        "rows_per_second": 1_000 * (1 - waits),
        "step_seconds": 0.01,
        "rows_per_step": 10,
        "num_ipus": 4,
        "num_micro_batches": 12,
        "shares": {"compute": 0.9 - waits, "imbalance": waits, "calls": 0.1},
        "waits": waits + 0.1,
        "bubble": waits,
        "bubble_if_alike": 0.2,
        "fits": "yes",
        "limit_bytes": 624 * 1024,
        "fullest_bytes": [[ipu, 300_000] for ipu in range(4)],
        "parts": [{"weight": 150_000, "stash": 100_000, "stack": 1536}] * 4,
        "limited_by": "the pipeline",
        "formulas": [
            {
                "name": "Bubble",
                "place": "IPU 1",
                "value": waits,
                "result": f"{waits:.0%}",
                "words": "1 − work / time",
                "numbers": f"1 − {1 - waits:.1f} ms / 1 ms = {waits:.0%}",
            }
        ],
        "code": f"emulator.estimate(model)  # {HOSTILE}",
        "timeline": timeline(100),
    }


def laboratory() -> dict[str, Any]:
    settings = {"accumulation": [4, 8], "schedule": ["grouped", "interleaved", HOSTILE]}
    points = [*map(point, (0.5, 0.4, 0.3, 0.2, 0.1)), {"fault": HOSTILE}]
    choices = itertools.product(range(2), range(3))
    free = bench_view("Laboratory", settings, [1, 0], zip(choices, points, strict=True))
    near = [([0, 0], point(0.3)), ([1, 0], point(0.2))]
    near[0][1]["verdict"] = {"faults": ["Another split is faster.", HOSTILE], "reason": ""}
    near[1][1]["verdict"] = {"faults": [], "reason": f"Right, because of it. {HOSTILE}"}
    task = bench_view("Exercise 1: find it", settings, [0, 0], near, f"A task. {HOSTILE}")
    return {"name": HOSTILE, "benches": [free, task]}


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page. The test fails if the page logs an error."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    opened.on("console", lambda message: errors.append(message.text))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert not errors


def move(page: Any, setting: str, value: int) -> None:
    control = page.locator(f"[aria-label='{setting}']")
    if control.evaluate("(each) => each.tagName") == "SELECT":
        control.select_option(index=value)
    else:
        control.fill(str(value))
    drawn(page)


def drawn(page: Any) -> None:
    page.wait_for_function("() => laboratory.isDrawn")
    page.evaluate(NEXT_FRAME)


def opened(page: Any, folder: Path, width: int, address: str = "") -> None:
    path = folder / "lab.html"
    path.write_text(lab_to_html(laboratory()), encoding="utf-8")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(path.as_uri() + address)
    page.wait_for_selector("html[data-ready]")


@pytest.mark.parametrize("width", [1280, 390])
def test_lab_when_opened_then_it_asks_first_and_shows_the_point_of_the_sliders(
    page: Any, tmp_path: Path, width: int
) -> None:
    opened(page, tmp_path, width)
    text = page.inner_text("main")
    assert "How much of the time do the IPUs wait?" in text and "Bubble" not in text
    page.fill("input[aria-label='Your guess in percent']", "35")
    page.click("button:has-text('Show me')")
    page.evaluate(NEXT_FRAME)
    # In the fourth point, IPUs wait 20 % of the time for other IPUs and 10 % for the host.
    text = page.inner_text("main")
    assert "30.0 %" in text and "you guessed 35.0 %" in text and "Bubble, IPU 1" in text
    assert "What limits the step: the pipeline." in text
    assert "1 − work / time" in text and "1 − 0.8 ms / 1 ms = 20%" in text
    assert "What changed" not in text and "emulator.estimate(model)" in text
    assert page.locator("main .chart canvas").count() == 2
    page.click("#clock")
    page.evaluate(NEXT_FRAME)
    assert " ms" in page.inner_text(".range")
    move(page, "Schedule", 1)
    text = page.inner_text("main")
    assert "20.0 %" in text and "guessed" not in text
    assert "Schedule: grouped → interleaved" in text and "20% → 10%" in text and "−50 %" in text
    assert page.evaluate("() => location.hash") == "#bench=0&accumulation=8&schedule=interleaved"
    page.keyboard.press("Tab")
    page.click("h2")
    page.keyboard.press("w")
    first, last = page.evaluate("() => laboratory.timelines[0].range")
    assert last - first == page.evaluate("() => laboratory.timelines[0].index.end") / 2
    move(page, "Schedule", 2)
    assert HOSTILE in page.inner_text("main") and page.locator("img").count() == 0
    move(page, "Micro-batches of an update", 0)
    assert "40.0 %" in page.inner_text("main")
    page.click("button:has-text('Ask me first')")
    assert "Bubble" not in page.inner_text("main")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_exercise_when_checked_then_it_shows_faults_or_the_reason(
    page: Any, tmp_path: Path, width: int
) -> None:
    opened(page, tmp_path, width, "#bench=1&accumulation=4")
    assert "A task. <img" in page.inner_text("main") and "Another split" not in page.inner_text(
        "main"
    )
    tab = page.locator("#tabs [aria-selected=true]")
    box = tab.bounding_box()
    assert tab.inner_text() == "Exercise 1: find it" and 0 <= box["x"] < width
    page.click("button:has-text('Check')")
    drawn(page)
    assert "not yet" in page.inner_text("main") and "Another split" in page.inner_text("main")
    move(page, "Micro-batches of an update", 1)
    assert "not yet" not in page.inner_text("main")
    page.click("button:has-text('Check')")
    drawn(page)
    assert "Right, because of it." in page.inner_text("main") and page.locator("img").count() == 0
    # The page has no plan for this choice, and leads back to those that it has.
    move(page, "Schedule", 1)
    text = page.inner_text("main")
    assert "no plan for these settings" in text and '"schedule": ["interleaved"]' in text
    page.click("button:has-text('Schedule back to grouped')")
    drawn(page)
    assert "Your answer" in page.inner_text("main")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.fixture
def live(browser: Any) -> Iterator[tuple[Any, PageServer, list[str]]]:
    """An empty page, a server of a live laboratory whose answers are slow, and its questions."""
    settings = {"accumulation": list(range(1, 41)), "schedule": ["grouped", "interleaved"]}
    view = bench_view("Laboratory", settings, [0, 0], ()) | {"is_live": True}
    questions: list[str] = []

    def answer(question: str) -> dict[str, Any]:
        questions.append(question)
        time.sleep(0.1)
        return point(int(question.partition(".")[0]) / 100)

    server = PageServer(lab_to_html({"name": HOSTILE, "benches": [view]}, is_live=True), answer)
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    yield opened, server, questions
    context.close()
    server.stop()


def test_live_lab_when_a_slider_moves_then_its_last_choice_is_shown_and_few_are_asked_for(
    live: tuple[Any, PageServer, list[str]],
) -> None:
    page, server, questions = live
    page.goto(server.address)
    page.wait_for_selector("html[data-ready]")
    page.click("button:has-text('Show me')")
    drawn(page)
    assert questions == ["0.0"]
    slider = page.locator("[aria-label='Micro-batches of an update']")
    slider.focus()
    for _ in range(39):
        slider.press("ArrowRight")
    drawn(page)
    assert "39%" in page.inner_text("main") and page.locator("img").count() == 0
    assert questions[-1] == "39.0" and len(questions) == len(set(questions))
    assert "accumulation=40" in page.url
    server.stop()
    page.locator("select").select_option(index=1)
    drawn(page)
    assert "does not answer" in page.inner_text("main")
    page.click("button:has-text('Ask again')")
    drawn(page)
    assert "does not answer" in page.inner_text("main")


def test_live_lab_when_in_the_frame_of_a_notebook_then_it_asks_its_server(
    live: tuple[Any, PageServer, list[str]],
) -> None:
    page, server, _ = live
    page.set_content(LiveLab(server)._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator("button:has-text('Show me')").click()
    frame.locator("text=0%").first.wait_for()
    frame.locator("select").select_option(index=1)
    frame.locator("text=Schedule: grouped").wait_for()


def test_page_when_in_the_frame_of_a_notebook_then_its_tabs_work(page: Any) -> None:
    text = html.escape(to_html([report()]))
    page.set_content(f'<iframe srcdoc="{text}" sandbox="allow-scripts" width="900"></iframe>')
    frame = page.frame_locator("iframe")
    for panel in ("memory", "timeline", "summary"):
        frame.locator(f"#tab-{panel}").click()
        frame.locator(f"#tab-{panel}[aria-selected=true]").wait_for()
        assert frame.locator("main .card").count()

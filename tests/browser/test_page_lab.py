"""The laboratory in a real browser: it asks, shows and explains; frames of notebooks take pages."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.page_views import NEXT_FRAME, PATIENCE_MS
from support.synthetic_reports import report, timeline

from poptorch_emu.report.page.page_file import lab_to_html, to_html

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
        "limited_by": "the pipeline",
        "timeline": timeline(100),
    }


def laboratory() -> dict[str, Any]:
    return {
        "name": HOSTILE,
        "settings": [
            {"name": "accumulation", "values": ["4", "8"]},
            {"name": "schedule", "values": ["grouped", "interleaved", HOSTILE]},
        ],
        "start": [1, 0],
        "points": [*map(point, (0.5, 0.4, 0.3, 0.2, 0.1)), {"fault": HOSTILE}],
    }


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
    page.fill(f"input[aria-label='{setting}']", str(value))
    page.evaluate(NEXT_FRAME)


@pytest.mark.parametrize("width", [1280, 390])
def test_lab_when_opened_then_it_asks_first_and_shows_the_point_of_the_sliders(
    page: Any, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "lab.html"
    path.write_text(lab_to_html(laboratory()), encoding="utf-8")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    text = page.inner_text("main")
    assert "How much of the time do the IPUs wait?" in text and "rows/s" not in text
    page.fill("input[aria-label='Your guess in percent']", "35")
    page.click("button:has-text('Show me')")
    page.evaluate(NEXT_FRAME)
    # In the fourth point, IPUs wait 20 % of the time for other IPUs and 10 % for the host.
    text = page.inner_text("main")
    assert "30.0 %" in text and "you guessed 35.0 %" in text and "800 rows/s" in text
    assert "What limits the step: the pipeline." in text
    assert page.locator("main .chart canvas").count() == 2
    page.click("#clock")
    page.evaluate(NEXT_FRAME)
    assert " ms" in page.inner_text(".range")
    move(page, "Schedule", 1)
    assert "20.0 %" in page.inner_text("main") and "guessed" not in page.inner_text("main")
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
    assert "rows/s" not in page.inner_text("main")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_page_when_in_the_frame_of_a_notebook_then_its_tabs_work(page: Any) -> None:
    text = html.escape(to_html([report()]))
    page.set_content(f'<iframe srcdoc="{text}" sandbox="allow-scripts" width="900"></iframe>')
    frame = page.frame_locator("iframe")
    for panel in ("memory", "timeline", "summary"):
        frame.locator(f"#tab-{panel}").click()
        frame.locator(f"#tab-{panel}[aria-selected=true]").wait_for()
        assert frame.locator("main .card").count()

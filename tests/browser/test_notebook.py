"""Results of the emulator in a notebook that nbconvert has turned into a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.emulator_values import VALUES
from support.page_views import PATIENCE_MS

TESTS = Path(__file__).parents[1]
SIZES = {"wide": 1280, "narrow": 390}

# Finds boxes that are wider than their output, and texts that a picture cuts off.
_TOO_WIDE = """output => {
    const right = output.getBoundingClientRect().right + 1;
    const scrolls = element => element && element !== output
        && (["auto", "scroll"].includes(getComputedStyle(element).overflowX)
            || scrolls(element.parentElement));
    return [...output.querySelectorAll("table, pre, svg, iframe")]
        .filter(box => box.getBoundingClientRect().right > right && !scrolls(box))
        .map(box => box.outerHTML.slice(0, 60));
}"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the HTML page of a notebook in which each cell shows one value."""
    nbconvert = pytest.importorskip("nbconvert", reason="pip install '.[browser]'")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    folder = tmp_path_factory.mktemp("notebook")
    first = (
        f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(TESTS)!r})\n"
        f"from support.emulator_values import VALUES\nfolder = Path({str(folder)!r})"
    )
    cells = [first, *(f"VALUES[{name!r}](folder)" for name in VALUES)]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    # On a busy machine the last output of a cell may arrive long after the cell has ended.
    patience = {"timeout": 300, "iopub_timeout": 300, "startup_timeout": 300}
    nbclient.NotebookClient(made, kernel_name="python3", **patience).execute()
    page = folder / "notebook.html"
    text, _ = nbconvert.HTMLExporter(require_js_url="", mathjax_url="").from_notebook_node(made)
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES.values(), ids=SIZES)
def test_each_value_in_a_notebook_then_is_seen_whole(
    notebook: Path, browser: Any, width: int, theme: str
) -> None:
    errors: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, offline=True, color_scheme=theme
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(notebook.as_uri())
    outputs = page.query_selector_all(".jp-OutputArea-output.jp-OutputArea-executeResult")
    assert len(outputs) == len(VALUES)
    for name, output in zip(VALUES, outputs, strict=True):
        output.scroll_into_view_if_needed()
        box = output.bounding_box()
        assert box and box["height"] > 10 and box["width"] > 100, name
        assert output.inner_text().strip() or output.query_selector("iframe, svg"), name
        assert not output.evaluate(_TOO_WIDE), (name, output.evaluate(_TOO_WIDE))
    # A browser draws no frame that is out of sight, so the test scrolls to the frame and waits.
    box = page.query_selector("iframe")
    box.scroll_into_view_if_needed()
    frame = box.content_frame()
    frame.wait_for_selector("html[data-ready]")
    assert frame.query_selector("#model-name").inner_text() == "Layers"
    context.close()
    assert not errors, json.dumps(errors)

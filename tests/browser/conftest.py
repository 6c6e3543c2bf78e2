"""A headless browser for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.page_views import PATIENCE_MS

from poptorch_emu.report.page.page_file import to_html

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_WAY_OUT = "pip install '.[browser]', and on Debian apt-get install chromium"


# The scope is not the session, because Playwright's event loop runs while it is open, and notebooks
# need an event loop of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Starts the browser of the system by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason=f"no Playwright: {_WAY_OUT}")
    path = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser among {', '.join(_BROWSERS)}: {_WAY_OUT}")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens the page of some reports; at the end no error may have been logged."""
    errors: list[str] = []
    opened = []

    def open_one(*reports: dict[str, Any], files: tuple[str, ...] = (), **settings: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(to_html(reports, files), encoding="utf-8")
        size = {"width": 1280, "height": 900}
        context = browser.new_context(viewport=size, offline=True, **settings)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: errors.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        opened.append(context)
        return page

    yield open_one
    for context in opened:
        context.close()
    assert not errors

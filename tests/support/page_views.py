"""What tests do with the page in a browser before they look at it."""

from __future__ import annotations

from typing import Any

# How long a test waits for what it asks of a page. A busy machine draws no faster than it can.
PATIENCE_MS = 120_000
NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def show(page: Any, panel: str) -> None:
    """Opens a panel, and waits until it is drawn."""
    page.click(f"#tab-{panel}")
    page.evaluate(NEXT_FRAME)
    page.evaluate(NEXT_FRAME)


def go_to_operation(page: Any, name: str) -> None:
    """Looks an operation up in its panel, and follows its link to the timeline."""
    show(page, "operations")
    page.click("button:has-text('All')")
    page.fill("input[type=search]", name)
    page.click(f"button.link:has-text('{name}')")
    page.evaluate(NEXT_FRAME)

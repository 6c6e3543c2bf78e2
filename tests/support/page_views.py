"""What tests do with the page in a browser before they look at it."""

from __future__ import annotations

from typing import Any

NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def show(page: Any, panel: str) -> None:
    """Opens a panel, and waits until it is drawn."""
    page.click(f"#tab-{panel}")
    page.evaluate(NEXT_FRAME)
    page.evaluate(NEXT_FRAME)

"""Actions of tests on the page in a browser before they inspect it."""

from __future__ import annotations

from typing import Any

# Longest wait for the page, because a busy machine draws slowly.
PATIENCE_MS = 120_000
NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# Elements that extend beyond their card without being in a part that scrolls.
OUTSIDE = """() => [...document.querySelectorAll('main .card')].flatMap((card) => {
  const frame = card.getBoundingClientRect();
  return [...card.querySelectorAll('*')].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && !each.closest('.sideways, .table-frame, .skip')
      && (box.left < frame.left - 1 || box.right > frame.right + 1);
  }).map((each) => `${each.tagName} ${each.className}`);
})"""
# Words with too little contrast: a ratio below 3, by the formula of WCAG.
FAINT = """() => {
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const [red, green, blue] = text.match(/[\\d.]+/g).map((each) => channel(each / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      if (/^rgb\\(/.test(found)) return found;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('main *, header *, nav *')]
    .filter((each) => each.checkVisibility() && !each.closest('svg, .skip')
      && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .filter((each) => {
      const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort();
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 3;
    }).map((each) => each.textContent);
}"""


def show(page: Any, panel: str) -> None:
    """Opens a panel and waits until it is drawn."""
    page.click(f"#tab-{panel}")
    page.evaluate(NEXT_FRAME)
    page.evaluate(NEXT_FRAME)


def go_to_operation(page: Any, name: str) -> None:
    """Looks up an operation in its panel and follows its link to the timeline."""
    show(page, "operations")
    page.click("button:has-text('All')")
    page.fill("input[type=search]", name)
    page.click(f"button.link:has-text('{name}')")
    page.evaluate(NEXT_FRAME)

"""A picture of predicted speeds with their intervals, as SVG text without a drawing library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LINE, _LEFT, _WIDTH, _TOP = 16, 150, 520, 46
_LEAST, _MOST = 0.4, 2.5
_TICKS = (0.5, 0.7, 1.0, 1.4, 2.0)
_INSIDE, _OUTSIDE = "#1f6fb2", "#c23b22"


@dataclass(frozen=True)
class Bar:
    """One row of the picture.

    Attributes:
        name: name of the row.
        kind: rows of a kind are listed together.
        ratio: predicted divided by published figure.
        spread: logarithm of the factor of the interval.
    """

    name: str
    kind: str
    ratio: float
    spread: float


def svg(bars: Sequence[Bar]) -> str:
    """Returns the picture: a dot for each prediction, a bar for its interval, a line at 1."""
    shapes, y = [], _TOP
    for kind in dict.fromkeys(bar.kind for bar in bars):
        y += _LINE
        shapes.append(_text(6, y, kind, "start", "bold"))
        for bar in (bar for bar in bars if bar.kind == kind):
            y += _LINE
            shapes += _shapes(bar, y)
    height = y + _LINE
    grid = [_tick(value, height) for value in _TICKS]
    title = "predicted / published speed; bars: intervals; red: the interval misses 1"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height + 8}"'
        ' font-family="sans-serif" font-size="11">'
    )
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = [background, _text(6, 16, title, "start"), *grid, *shapes]
    return "\n".join([head, *body, "</svg>"]) + "\n"


def _x(ratio: float) -> float:
    share = math.log(min(max(ratio, _LEAST), _MOST) / _LEAST) / math.log(_MOST / _LEAST)
    return round(_LEFT + share * _WIDTH, 1)


def _shapes(bar: Bar, y: int) -> list[str]:
    factor = math.exp(bar.spread)
    low, high, middle = _x(bar.ratio / factor), _x(bar.ratio * factor), y - 4
    colour = _INSIDE if abs(math.log(bar.ratio)) <= bar.spread else _OUTSIDE
    return [
        _text(16, y, bar.name, "start"),
        f'<line x1="{low}" x2="{high}" y1="{middle}" y2="{middle}" stroke="{colour}" '
        'stroke-width="5" stroke-opacity="0.35"/>',
        f'<circle cx="{_x(bar.ratio)}" cy="{middle}" r="3.5" fill="{colour}"/>',
    ]


def _tick(value: float, height: int) -> str:
    colour = "#333333" if value == 1 else "#d5d5d5"
    x = _x(value)
    line = f'<line x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{height}" stroke="{colour}"/>'
    return line + _text(x, _TOP - 10, f"{value:g}", "middle")


def _text(x: float, y: int, text: str, anchor: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="#222222">'
        f"{escape(text)}</text>"
    )

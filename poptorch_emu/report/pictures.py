"""Drawing functions for all reports with matplotlib, an optional dependency: boxes and bars.

Names from the user are drawn as plain text, without matplotlib's formulas.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poptorch_emu.report.terms import TERMS, Term, ink_on, lighter, term

_EDGE = "#161b26"
# Hatches have the colour of the edge. This one is half transparent, so that digits stay readable.
_HATCHED_EDGE = "#161b2670"
# Places of a text beside its point that are tried in turn: offsets in points, and the text's side.
# The last one is used if all are taken.
_BESIDE = (
    (5, 4, "left"), (-5, 4, "right"), (5, -11, "left"), (-5, -11, "right"), (0, 12, "center"),
    (0, -19, "center"),
)  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A stretch of work on a lane, with text on it; a higher shade is lighter."""

    lane: int
    begin: float
    length: float
    kind: str
    text: str = ""
    shade: int = 0


def pyplot() -> Any:
    """Returns the module `matplotlib.pyplot`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ImportError(
            f"Pictures need matplotlib, but importing it failed: {error}. Run "
            "pip install 'poptorch_emu[report]', or print the value instead."
        ) from error


def axes_or_new(axes: Any, width: float, height: float) -> Any:
    """Returns `axes`, or those of a new figure of `width` x `height` inches."""
    if axes is not None:
        return axes
    _, made = pyplot().subplots(figsize=(width, height), layout="constrained")
    return made


def draw_boxes(axes: Any, boxes: Sequence[Box], lanes: Sequence[str], text_size: float = 8) -> None:
    """Draws one row for each lane, the first on top, and a legend of the kinds in use."""
    kinds = [word for word in TERMS if any(box.kind == word for box in boxes)]
    spans: defaultdict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for box in boxes:
        spans[box.kind, box.shade, box.lane].append((box.begin, box.length))
    for (kind, shade, lane), of_lane in spans.items():
        axes.broken_barh(
            of_lane, (lane - 0.42, 0.84), facecolor=shaded(term(kind).colour, shade),
            hatch=_hatch(term(kind)), edgecolor=_edge(term(kind)), linewidth=0.5,
        )  # fmt: skip
    for box in boxes:
        if box.text:
            # Digits on a hatch need a plain background to be readable.
            colour = shaded(term(box.kind).colour, box.shade)
            ground = {"facecolor": colour, "linewidth": 0, "pad": 1.0}
            axes.text(
                box.begin + box.length / 2, box.lane, box.text, ha="center", va="center",
                color=ink_on(colour), fontsize=text_size, parse_math=False, clip_on=True,
                fontweight="bold" if term(box.kind).hatch else "normal",
                bbox=ground if term(box.kind).hatch else None,
            )  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes, parse_math=False)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    _legend(axes, kinds)


def shaded(colour: str, shade: int) -> str:
    """Returns a `#rrggbb` colour that each shade moves nearer to white."""
    return lighter(colour, 1 - 0.6**shade)


def draw_stacks(axes: Any, labels: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    """Draws a stacked bar for each label; parts that are zero everywhere are left out."""
    bottoms = [0.0] * len(labels)
    shown = [name for name, values in parts.items() if any(values)]
    for name in shown:
        bars = axes.bar(
            range(len(labels)), parts[name], bottom=bottoms, width=0.7, color=term(name).colour,
            hatch=_hatch(term(name)), edgecolor=_edge(term(name)), linewidth=0.5,
        )  # fmt: skip
        for bar in bars:  # Otherwise a thin part on top would touch the frame.
            bar.sticky_edges.y[:] = [0.0]
        bottoms = [low + part for low, part in zip(bottoms, parts[name], strict=True)]
    axes.set_xticks(range(len(labels)), labels, parse_math=False)
    if len(labels) > 8:
        axes.tick_params(axis="x", rotation=90)
    _legend(axes, shown)


def draw_limit(axes: Any, limit: float, name: str) -> None:
    """Draws a horizontal line at `limit`, unless it would make the bars too small to see."""
    if limit <= 3 * axes.get_ylim()[1]:
        axes.axhline(limit, color=_EDGE, linestyle="--", linewidth=1)
        axes.annotate(
            name, (1, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=8, parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1.0},
        )  # fmt: skip


def label_points(axes: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Writes a text beside each drawn point, where it stays inside and covers nothing if it can.

    Args:
        axes: matplotlib axes with the points.
        points: x, y and text of each point.
    """
    axes.margins(0.12)
    axes.figure.canvas.draw()  # The layout decides where the points are on the figure.
    box_of = importlib.import_module("matplotlib.transforms").Bbox.from_extents
    taken = []
    for x, y, _ in points:
        right, up = axes.transData.transform((x, y))
        taken.append(box_of(right - 4, up - 4, right + 4, up + 4))
    for x, y, text in points:
        for beside in _BESIDE:
            label = axes.annotate(
                text, (x, y), xytext=beside[:2], textcoords="offset points", ha=beside[2],
                fontsize=8, parse_math=False,
            )  # fmt: skip
            box = label.get_window_extent()
            is_inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if beside == _BESIDE[-1] or (is_inside and not box.count_overlaps(taken)):
                break
            label.remove()
        taken.append(box)


def draw_unknown(axes: Any, quantity: str) -> None:
    """Writes that something is not known, instead of a picture."""
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, f"{quantity}: not known", ha="center", va="center", transform=axes.transAxes,
        parse_math=False,
    )  # fmt: skip


def set_title(axes: Any, text: str) -> None:
    """Writes a title, which may contain names from the user, above `axes`."""
    axes.set_title(text, parse_math=False, loc="left", fontsize=10)


def _hatch(of: Term) -> str:
    """Returns a hatch that is dense enough to be seen on a small box."""
    return of.hatch * (4 if len(of.hatch) == 1 else 3)


def _edge(of: Term) -> str:
    return _HATCHED_EDGE if of.hatch else _EDGE


def _legend(axes: Any, words: Iterable[str]) -> None:
    patch = importlib.import_module("matplotlib.patches").Patch
    handles = [
        patch(
            facecolor=term(word).colour,
            hatch=_hatch(term(word)),
            edgecolor=_edge(term(word)),
            linewidth=0.5,
            label=word,
        )  # fmt: skip
        for word in words
    ]
    if handles:
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8
        )

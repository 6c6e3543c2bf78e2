"""What the pictures of reports share: matplotlib, which is an extra, colours, boxes and bars.

Kinds of work differ in how light they are, and have a hatch each, so that a print in black and
white tells them apart. Names of the user are written as they are, without matplotlib's formulas.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Look:
    """How boxes of one kind are drawn."""

    colour: str
    hatch: str = ""
    ink: str = "#161b26"


LOOKS = {
    "forward": Look("#9cc4f8"),
    "recompute": Look("#e9f1fd", "////"),
    "backward": Look("#e58a35"),
    "weights": Look("#f6d09b", "\\\\\\\\"),
    "update": Look("#5b3f95", "", "#ffffff"),
    "exchange": Look("#17836f", "....", "#ffffff"),
    "host": Look("#c3c9d4", "----"),
    "collective": Look("#b1285f", "xxxx", "#ffffff"),
}
UNKNOWN = Look("#ffffff", "oo")
_BARS = (
    Look("#2f6fed"),
    Look("#9cc4f8", "///"),
    Look("#e58a35"),
    Look("#f6d09b", "..."),
    Look("#5b3f95"),
    Look("#c9b5ea", "\\\\\\"),
    Look("#17836f"),
    Look("#9ed9cb", "xxx"),
    Look("#8b94a6", "---"),
    Look("#dfe3ec", "ooo"),
    Look("#b1285f"),
    Look("#f3b8cf", "+++"),
)
_EDGE = "#161b26"


@dataclass(frozen=True)
class Box:
    """A stretch of work on a lane; text stands on it. A higher shade is lighter."""

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
    """Returns `axes`, or those of a new figure of so many inches."""
    if axes is not None:
        return axes
    _, made = pyplot().subplots(figsize=(width, height), layout="constrained")
    return made


def draw_boxes(axes: Any, boxes: Sequence[Box], lanes: Sequence[str], text_size: float = 8) -> None:
    """Draws one row for each lane, the first on top, and a legend of the kinds that there are."""
    kinds = [kind for kind in LOOKS if any(box.kind == kind for box in boxes)]
    spans: defaultdict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for box in boxes:
        spans[box.kind, box.shade, box.lane].append((box.begin, box.length))
    for (kind, shade, lane), of_lane in spans.items():
        axes.broken_barh(
            of_lane, (lane - 0.42, 0.84), facecolor=shaded(LOOKS[kind].colour, shade),
            hatch=LOOKS[kind].hatch, edgecolor=_EDGE, linewidth=0.5,
        )  # fmt: skip
    for box in boxes:
        if box.text:
            look = LOOKS[box.kind]
            # On a hatch, digits need a ground of their own.
            colour = shaded(look.colour, box.shade)
            ground = {"facecolor": colour, "linewidth": 0, "pad": 0.6}
            axes.text(
                box.begin + box.length / 2, box.lane, box.text, ha="center", va="center",
                color=look.ink, fontsize=text_size, parse_math=False, clip_on=True,
                bbox=ground if look.hatch else None,
            )  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes, parse_math=False)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    _legend(axes, [(kind, LOOKS[kind]) for kind in kinds])


def shaded(colour: str, shade: int) -> str:
    """Returns a colour, `#rrggbb`, nearer to white with each shade."""
    kept = 0.6**shade
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * kept):02x}" for part in parts)


def draw_stacks(axes: Any, labels: Sequence[str], parts: Mapping[str, Sequence[float]]) -> None:
    """Draws a bar for each label, made of the parts; parts that are nowhere are left out."""
    bottoms = [0.0] * len(labels)
    shown = [name for name, values in parts.items() if any(values)]
    looks = {name: _BARS[number % len(_BARS)] for number, name in enumerate(shown)}
    for name, look in looks.items():
        axes.bar(
            range(len(labels)), parts[name], bottom=bottoms, width=0.7, color=look.colour,
            hatch=look.hatch, edgecolor=_EDGE, linewidth=0.5,
        )  # fmt: skip
        bottoms = [low + part for low, part in zip(bottoms, parts[name], strict=True)]
    axes.set_xticks(range(len(labels)), labels, parse_math=False)
    if len(labels) > 8:
        axes.tick_params(axis="x", rotation=90)
    _legend(axes, looks.items())


def draw_limit(axes: Any, limit: float, name: str) -> None:
    """Draws a line across at `limit`, where it does not make all else too small to see."""
    if limit <= 3 * axes.get_ylim()[1]:
        axes.axhline(limit, color=_EDGE, linestyle="--", linewidth=1)
        axes.annotate(
            name, (1, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=8, parse_math=False,
        )  # fmt: skip


def draw_unknown(axes: Any, what: str) -> None:
    """Says that something is not known, instead of a picture."""
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, f"{what}: not known", ha="center", va="center", transform=axes.transAxes,
        parse_math=False,
    )  # fmt: skip


def set_title(axes: Any, text: str) -> None:
    """Writes what may hold names of the user above `axes`."""
    axes.set_title(text, parse_math=False, loc="left", fontsize=10)


def _legend(axes: Any, looks: Iterable[tuple[str, Look]]) -> None:
    patch = importlib.import_module("matplotlib.patches").Patch
    handles = [
        patch(facecolor=look.colour, hatch=look.hatch, edgecolor=_EDGE, linewidth=0.5, label=name)
        for name, look in looks
    ]
    if handles:
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8
        )

"""A timeline as an SVG picture for notebooks: a lane for each IPU, in the colours of reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from poptorch_emu.plan.time.time_plan import Event
from poptorch_emu.report.terms import TERMS, WORD_OF_EVENT, WORK
from poptorch_emu.untrusted.texts import as_html

_WIDTH, _LABEL, _LANE, _BAR, _TOP = 960, 70, 30, 22, 24
# Smallest width at which the texts can be read; a narrower frame scrolls.
_LEAST_WIDTH = 720
# Widths in pixels: narrower events are skipped beside others, and narrower boxes have no number.
_NARROW, _NUMBERED = 0.5, 16
_FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def timeline_svg(events: Iterable[Event], ipus: Sequence[int], end_seconds: float) -> str:
    """Returns an SVG image of the events of a window; numbers are micro-batches.

    Args:
        events: events by begin.
        ipus: IPU of each lane, from the top.
        end_seconds: end of the time axis in seconds.
    """
    shown = list(events)
    words = [word for word in WORK if any(WORD_OF_EVENT[one.kind] == word for one in shown)]
    legend_top = _TOP + _LANE * len(ipus) + 14
    parts = [
        *_axis(end_seconds),
        *(_text(0, _TOP + _LANE * at + 15, f"IPU {ipu}") for at, ipu in enumerate(ipus)),
        *_boxes(shown, ipus, end_seconds),
        *_legend(words, legend_top),
    ]
    height = legend_top + 24
    label = f"Timeline of {len(ipus)} IPUs"
    return (
        f'<div style="overflow-x:auto"><svg role="img" aria-label="{label}" '
        f'viewBox="0 0 {_WIDTH} {height}" {_FONT} xmlns="http://www.w3.org/2000/svg" '
        f'style="width:100%;min-width:{_LEAST_WIDTH}px;max-width:{_WIDTH}px">'
        f"{''.join(parts)}</svg></div>"
    )


def _axis(end_seconds: float) -> Iterator[str]:
    yield _text(_LABEL, 14, "0")
    yield _text(_WIDTH - 4, 14, f"{1e3 * end_seconds:.3g} ms", anchor="end")


def _boxes(events: Iterable[Event], ipus: Sequence[int], end_seconds: float) -> Iterator[str]:
    scale = (_WIDTH - _LABEL - 4) / (end_seconds or 1.0)
    drawn_to = dict.fromkeys(ipus, 0.0)
    for event in events:
        left = _LABEL + event.begin_seconds * scale
        width = (event.end_seconds - event.begin_seconds) * scale
        if width < _NARROW and left < drawn_to[event.ipu] + _NARROW:
            continue
        drawn_to[event.ipu] = left + width
        top, term = _TOP + _LANE * ipus.index(event.ipu), TERMS[WORD_OF_EVENT[event.kind]]
        milliseconds = 1e3 * (event.end_seconds - event.begin_seconds)
        tip = f"{term.word}, micro-batch {event.micro_batch}: {milliseconds:.3g} ms"
        yield (
            f'<rect x="{left:.1f}" y="{top}" width="{max(width, _NARROW):.1f}" height="{_BAR}" '
            f'fill="{term.colour}"><title>{as_html(tip)}</title></rect>'
        )
        if width >= _NUMBERED and term.word in ("forward", "recompute", "backward", "weights"):
            middle = left + width / 2
            yield _text(middle, top + 15, str(event.micro_batch), term.ink, "middle")


def _legend(words: Sequence[str], top: float) -> Iterator[str]:
    left = float(_LABEL)
    for word in words:
        yield f'<rect x="{left}" y="{top}" width="12" height="12" fill="{TERMS[word].colour}"/>'
        yield _text(left + 17, top + 11, word)
        left += 34 + 7 * len(word)


def _text(x: float, y: float, text: str, ink: str = "currentColor", anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y}" text-anchor="{anchor}"'
    return f'<text {place} fill="{ink}">{as_html(text)}</text>'

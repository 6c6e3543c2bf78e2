"""The terms of reports with their colours: one table for all panels, texts and pictures.

A term means the same in every report, and no other term has its colour. Terms of one picture also
differ in hatch or lightness, so that they stay distinct in black and white.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from poptorch_emu.plan.time.step_parts import Part

# Colours of text; the one with more contrast to its background is used.
_INKS = ("#161b26", "#ffffff")
# Share of white that is mixed into a colour for a dark background.
_LIGHTER = 0.22


@dataclass(frozen=True)
class Term:
    """A term of reports.

    Attributes:
        word: text of the term in all reports.
        meaning: text of its explanation.
        colour: `#rrggbb` colour for a light background.
        hatch: hatch pattern of matplotlib; "" for none.
        letter: letter for bars of text; "" for none.
    """

    word: str
    meaning: str
    colour: str
    hatch: str = ""
    letter: str = ""

    @cached_property
    def ink(self) -> str:
        """The colour of text on this term's colour."""
        return ink_on(self.colour)

    @cached_property
    def colour_on_dark(self) -> str:
        """The colour for a dark background."""
        return lighter(self.colour, _LIGHTER)


def lighter(colour: str, white: float) -> str:
    """Returns a colour with a share of white mixed into it."""
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in _rgb(colour))


def ink_on(colour: str) -> str:
    """Returns the text colour with the best contrast to a background."""
    return max(_INKS, key=lambda ink: abs(_lightness(ink) - _lightness(colour)))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def _lightness(colour: str) -> float:
    red, green, blue = _rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


# Kinds of work in a timeline. If one is also a part of a step, `Part` has its meaning.
_WORK = (
    Term("forward", "operations of forward", "#2f6fed", "", "F"),
    Term("recompute", "", "#8fc1ff", "/", "R"),
    Term("backward", "operations of backward", "#d9680f", "\\", "B"),
    Term("weights", "gradients of weights, where computed separately", "#f2b57a", "-", "W"),
    Term("update", "", "#7a3fc4", "o", "U"),
    Term("link", "", "#0f7f8a", "x", "l"),
    Term("exchange", "", "#35b8a6", ".", "x"),
    Term("streaming", "", "#c9b02c", "+", "s"),
    Term("host", "waiting for the host", "#8b94a6", "|", "h"),
    Term("all-reduce", "", "#d6407f", "*", "a"),
    Term("tracepoint", "the part of your program that a tracepoint marks", "#4a5568", "O"),
    Term("other", "all else", "#aab2c0", "//"),
)
_STEP = (
    Term("compute", "", "#3f8f3f"),
    Term("sync", "", "#b9a3e3", "//"),
    Term("low proportion", "", "#a8324a", "\\"),
    Term("host input", "", "#6b7489", "|"),
    Term("host output", "", "#a5aebd", "||"),
    Term("host data", "", "#c9b8a0", "--"),
    Term("calls", "", "#8a7a66", "-"),
    Term("imbalance", "", "#e3c6d4", "\\\\"),
    Term("ramp", "", "#d3e0c4", "O"),
    Term("turns", "", "#b7cdd9", "xx"),
    Term("update turns", "", "#dcd0f0"),
    Term("bubble", "waiting for other IPUs", "#d9dde6", "-", "."),
    Term("cycles", "the cycles of operations", "#5b7fa6"),
)
_MEMORY = (
    Term("fullest tile", "the tile that needs most memory", "#3d5a80"),
    Term("over the limit", "more than the memory of a tile", "#b3261e", "x"),
    Term("always live", "in memory during the whole program", "#4b4fa8"),
    Term("not always live", "in memory for a part of the program", "#9aa8e8", "/"),
    Term("weight", "parameters and buffers", "#28536b"),
    Term("optimiser state", "such as momenta", "#7d5ba6", "/"),
    Term("accumulator", "sums of gradients", "#c06c84", "\\"),
    Term("constant", "values that never change", "#a8a77a", "-"),
    Term("input", "inputs, from the host", "#5aa9e6", "."),
    Term("output", "outputs, for the host", "#b8e0d2", "o"),
    Term("stash", "activations that wait for backward", "#e0a458", "+"),
    Term("channel", "buffers for data between IPUs", "#419d78", "x"),
    Term("workspace", "results within a segment", "#8d6b4f", "|"),
    Term("live at the peak", "tensors at the moment when memory is fullest", "#f67280", "*"),
    Term("temporary at the peak", "working memory of the operation at that moment", "#f8b195", "O"),
    Term("program", "all code, vertex state and stacks", "#54585e", "--"),
    Term("I/O", "on the tiles that are reserved for it", "#cfd8dc", "||"),
    Term("vertex code", "code of operations", "#5f7a4d", "//"),
    Term("vertex state", "arguments of vertices", "#9db98b", "\\\\"),
    Term("exchange code", "code that moves data between tiles", "#1f6f5c", "--"),
    Term("control code", "code that runs the programs in order", "#c5d86d", "||"),
    Term("stack", "stacks of the threads of a tile", "#6e6e6e", "xx"),
    Term("uneven spread", "difference between the fullest and the mean tile", "#9c8aa5", "O"),
)
_REPORTS = (
    Term("schedule", "a schedule of the comparison", "#2a6f97"),
    Term("first report", "the report that was given first", "#52606d"),
    Term("second report", "the report that was given second", "#b8860b", "/"),
)

_MEANINGS = {part.word: part.meaning for part in Part}
TERMS: Mapping[str, Term] = {
    term.word: replace(term, meaning=_MEANINGS.get(term.word, term.meaning))
    for term in (*_WORK, *_STEP, *_MEMORY, *_REPORTS)
}
# Terms of a timeline, in the order of its legend.
WORK = tuple(term.word for term in _WORK)
# Term for each kind of event in the plan of time.
WORD_OF_EVENT = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "weights": "weights",
    "optimizer": "update",
    "link": "link",
    "stash": "exchange",
    "remote": "streaming",
    "host": "host",
    "reduce": "all-reduce",
}


_IN_SENTENCES = {
    "weight": "weights",
    "accumulator": "accumulators",
    "constant": "constants",
    "input": "inputs",
    "output": "outputs",
    "stash": "stashes",
    "channel": "buffers for data between IPUs",
    "live at the peak": "what is live at the peak",
    "temporary at the peak": "the working memory of the operation at the peak",
}


def in_sentence(word: str) -> str:
    """Returns a term of memory in the form that follows "is" in a sentence."""
    return _IN_SENTENCES.get(word, word)


def term(word: str) -> Term:
    """Returns the term of a word; "other" for unknown words, as in files of other programs."""
    return TERMS.get(word, TERMS["other"])

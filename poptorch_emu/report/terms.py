"""The words of reports with their colours: one table for all panels, texts and pictures.

A word means the same wherever it stands, and no other word has its colour. Words that stand in one
picture differ in their hatch or in how light they are, so that a print in black and white tells
them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from poptorch_emu.plan.time.step_parts import Part

# Text on a colour, whichever of the two is further from it.
_INKS = ("#161b26", "#ffffff")
# So much of a colour is white where the ground is dark.
_LIGHTER = 0.22


@dataclass(frozen=True)
class Term:
    """A word of reports.

    Attributes:
        word: as it stands everywhere.
        meaning: what an explanation says of it.
        colour: on a light ground, `#rrggbb`.
        hatch: a sign of matplotlib's; "" is plain.
        letter: of a line of text, if it has one.
    """

    word: str
    meaning: str
    colour: str
    hatch: str = ""
    letter: str = ""

    @cached_property
    def ink(self) -> str:
        """The colour of text on it."""
        return ink_on(self.colour)

    @cached_property
    def colour_on_dark(self) -> str:
        """Its colour on a dark ground."""
        return lighter(self.colour, _LIGHTER)


def lighter(colour: str, white: float) -> str:
    """Returns a colour of which a share is white."""
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in _rgb(colour))


def ink_on(colour: str) -> str:
    """Returns the colour of text that is read best on a colour."""
    return max(_INKS, key=lambda ink: abs(_lightness(ink) - _lightness(colour)))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def _lightness(colour: str) -> float:
    red, green, blue = _rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


# What an IPU does when; those that are also parts of a step stand among these.
_WORK = (
    Term("forward", "operations of forward", "#2f6fed", "", "F"),
    Term("recompute", "activations that are computed again for backward", "#8fc1ff", "/", "R"),
    Term("backward", "operations of backward", "#d9680f", "\\", "B"),
    Term(
        "weights",
        "gradients of weights, where computed separately",
        "#f2b57a",
        "-",
        "W",
    ),
    Term("update", "the optimiser's rule", "#7a3fc4", "o", "U"),
    Term("link", "data from other IPUs of the replica", "#0f7f8a", "x", "l"),
    Term("exchange", "data between the tiles of an IPU, stashes included", "#35b8a6", ".", "x"),
    Term("streaming", "data from and to streaming memory", "#c9b02c", "+", "s"),
    Term("host", "waiting for the host", "#8b94a6", "|", "h"),
    Term(
        "all-reduce",
        "sums and shares exchanged by replicas",
        "#d6407f",
        "*",
        "a",
    ),
    Term("tracepoint", "what your program marked by a tracepoint", "#4a5568", "O"),
    Term("other", "all else", "#aab2c0", "//"),
)
_STEP = (
    Term("compute", "operations, on the tiles", "#3f8f3f"),
    Term("sync", "starting programs, and waiting for all tiles", "#b9a3e3", "//"),
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
)
_REPORTS = (
    Term("schedule", "a schedule of the comparison", "#2a6f97"),
    Term("first report", "the report that was given first", "#52606d"),
    Term("second report", "the report that was given second", "#b8860b", "/"),
)

# The parts of a step; their definitions are those of the plan of time.
STEP = tuple(part.word for part in Part)
_MEANINGS = {part.word: part.meaning for part in Part}
TERMS: Mapping[str, Term] = {
    term.word: replace(term, meaning=_MEANINGS.get(term.word, term.meaning))
    for term in (*_WORK, *_STEP, *_MEMORY, *_REPORTS)
}
# What a timeline has, in the order of its legend.
WORK = tuple(term.word for term in _WORK)
# The word for each kind of the plan's events.
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
    """Returns a word of the memory as it stands in a sentence after "is"."""
    return _IN_SENTENCES.get(word, word)


def term(word: str) -> Term:
    """Returns the term of a word; what a report of somebody else names may be none."""
    return TERMS.get(word, TERMS["other"])

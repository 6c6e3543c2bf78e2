"""The checker's verdict on an answer, as text for people."""

from __future__ import annotations

import html
from dataclasses import dataclass

from poptorch_emu.printed.terminal import terminal_width, wrapped

_RIGHT, _WRONG = "#2e7d32", "#b3261e"


@dataclass(frozen=True)
class Assessment:
    """The verdict of the course's checker on an answer (exact).

    Attributes:
        number: number of the exercise.
        title: title of the exercise.
        faults: sentences that say what is wrong; empty if the answer is right.
        facts: sentences that say what was measured.
    """

    number: int
    title: str
    faults: tuple[str, ...]
    facts: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """Whether the answer is right."""
        return not self.faults

    def __str__(self) -> str:
        """Returns the verdict, each fault, and the measurements as text."""
        columns = terminal_width()
        lines = [f"- {fault}" for fault in self.faults] + list(self.facts)
        return "\n".join(
            [self._head(), *(part for line in lines for part in wrapped(line, columns))]
        )

    def _repr_html_(self) -> str:
        """Returns the same text as HTML for a notebook."""
        colour = _RIGHT if self.is_right else _WRONG
        faults = "".join(f"<li>{html.escape(fault)}</li>" for fault in self.faults)
        facts = "".join(f"<div>{html.escape(fact)}</div>" for fact in self.facts)
        return (
            f'<div style="border-left:4px solid {colour};padding-left:10px">'
            f"<b>{html.escape(self._head())}</b><ul>{faults}</ul>{facts}</div>"
        )

    def _head(self) -> str:
        verdict = "right." if self.is_right else "not yet."
        return f"Exercise {self.number}, {self.title}: {verdict}"

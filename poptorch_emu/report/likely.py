"""Intervals of predicted figures in tables."""

from __future__ import annotations

from poptorch_emu.machine.spread import Figure


def likely_text(figure: Figure | None, unit: float = 1.0) -> str:
    """Returns the interval of a figure in words; "-" without a figure.

    Args:
        figure: predicted figure.
        unit: the interval is divided by this.
    """
    return "-" if figure is None else (figure / unit).likely

"""Intervals of predicted figures in words."""

from __future__ import annotations

import math

from poptorch_emu.machine.spread import Figure


def likely_text(figure: Figure | None, unit: float = 1.0) -> str:
    """Returns the interval of a figure, its upper limit with three digits; "-" without a figure.

    Args:
        figure: predicted figure.
        unit: the interval is divided by this.
    """
    if figure is None:
        return "-"
    low, high = (limit / unit for limit in figure.interval)
    decimals = 2 - math.floor(math.log10(high)) if high > 0 else 0
    low, high = round(low, decimals), round(high, decimals)
    return f"{low:,.{max(0, decimals)}f} to {high:,.{max(0, decimals)}f}"

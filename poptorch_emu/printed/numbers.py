"""Numbers of predictions in words."""

from __future__ import annotations

import math


def decimals(limit: float) -> int:
    """Returns the number of decimals for three significant digits; negative from 1,000 on."""
    return 2 - math.floor(math.log10(limit)) if limit > 0 else 0


def limits_text(low: float, high: float) -> str:
    """Returns an interval as `5,030 to 6,770`, its upper limit with three digits."""
    places = decimals(high)
    return " to ".join(f"{round(limit, places):,.{max(0, places)}f}" for limit in (low, high))

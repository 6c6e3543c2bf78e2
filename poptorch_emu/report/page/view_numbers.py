"""The content of the page's numbers panel, as plain values: losses by half precision."""

from __future__ import annotations

import math
from typing import Any

from poptorch_emu.numbers.magnitudes import TypeRange
from poptorch_emu.numbers.run import Direction
from poptorch_emu.report.numbers_report import line_of
from poptorch_emu.report.numerics_report import WORD_OF_DIRECTION, NumericsReport, histogram


def numbers_view(report: NumericsReport | None) -> dict[str, Any] | None:
    """Returns the values of the panel; `None` if the user did not ask for them."""
    if report is None:
        return None
    of = TypeRange.of(report.dtype)
    return {
        "sentences": list(report.sentences),
        "suggestions": list(report.suggestions),
        "notes": list(report.notes),
        "type": {"name": of.name, "zero": of.zero, "normal": of.normal, "overflow": of.overflow},
        "loss_scaling": report.loss_scaling,
        "best": None if report.best is None else report.best.exponent,
        # For each direction, the term with its colour, and [exponent, share] for each bin.
        "histograms": [
            {
                "name": direction.value,
                "word": WORD_OF_DIRECTION[direction],
                "bins": [list(bin) for bin in histogram(report.magnitudes(direction))],
            }
            for direction in Direction
        ],
        # For each loss scale, [exponent, share that underflows, share that overflows].
        "scales": [[each.exponent, each.underflow, each.overflow] for each in report.scales],
        "operations": _columns(report),
    }


def _columns(report: NumericsReport) -> dict[str, list[Any]]:
    rows = report.operations
    sizes = [each.magnitudes for each in rows]
    return {
        "name": [each.value.title for each in rows],
        "module": [each.value.module or None for each in rows],
        "direction": [each.value.direction.value for each in rows],
        "type": [TypeRange.of(each.value.dtype).name for each in rows],
        "source": [line_of(each.value) or None for each in rows],
        "largest": [each.largest if each.num_nonzero else None for each in sizes],
        "smallest": [each.smallest if each.num_nonzero else None for each in sizes],
        "overflow": [each.overflow for each in rows],
        "flushed": [each.flushed for each in rows],
        "subnormal": [each.subnormal for each in rows],
        # The error is infinite if only the run is not finite, and JSON has no infinity.
        "error": ["infinite" if each.error == math.inf else each.error for each in rows],
    }

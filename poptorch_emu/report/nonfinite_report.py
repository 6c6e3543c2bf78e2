"""The first number that is not finite, as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from poptorch_emu.numbers.nonfinite import FirstNonfinite, Found
from poptorch_emu.report.numbers_report import where
from poptorch_emu.report.printed_report import PrintedReport

_NUM_SHOWN = 4


@dataclass(frozen=True)
class NonfiniteReport(FirstNonfinite, PrintedReport):
    """A printed report of values that are not finite (exact): origin, inputs and results."""

    def _parts(self, columns: int) -> Iterator[str]:
        if self.first is None:
            yield "All outputs, gradients and weights of the window are finite."
            return
        yield f"first: {_told(self.first)}"
        yield from (f"  input {name}: largest {size:.4g}" for name, size in self.first.inputs)
        if self.overflow is not None:
            yield f"before it, infinite: {_told(self.overflow)}"
        shown = ", ".join(self.reached[:_NUM_SHOWN])
        more = len(self.reached) - _NUM_SHOWN
        yield f"not finite in the end: {shown}{f' and {more} more' if more > 0 else ''}"


def _told(found: Found) -> str:
    micro_batch, replica = found.position
    return (
        f"{found.value.title} {where(found.value)}, micro-batch {micro_batch}, replica {replica}: "
        f"{found.num_nan} NaN, {found.num_infinite} infinite of {found.num_elements}"
    )

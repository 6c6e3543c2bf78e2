"""Losses by half precision in a window, as text and pictures for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poptorch_emu.numbers.magnitudes import Magnitudes, TypeRange
from poptorch_emu.numbers.numerics import ModuleGradients, Numerics, OperationNumbers
from poptorch_emu.numbers.run import Direction
from poptorch_emu.printed.terminal import shortened
from poptorch_emu.report.bottleneck_text import listed
from poptorch_emu.report.numbers_report import where
from poptorch_emu.report.pictures import axes_or_new
from poptorch_emu.report.printed_report import PrintedReport, Table
from poptorch_emu.report.terms import TERMS

_NUM_SHOWN, _NUM_MODULES = 20, 3
# Columns of a row beside the name of the operation.
_BESIDE_NAME = 62
# Assumed: a smaller share is not worth a sentence.
_NOTABLE = 0.01
# For each direction, the entry in the table of terms that has its colour.
WORD_OF_DIRECTION = {
    Direction.GIVEN: "input",
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "backward",
    Direction.UPDATE: "update",
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class NumericsReport(Numerics, PrintedReport):
    """Losses by half precision, to be printed and drawn (exact).

    The report has sentences on gradients and the loss scale, suggestions, and the operations that
    lose most. Shares refer to the numbers that are not zero.
    """

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on the losses."""
        return (self._headline(), *self._sentences())

    @property
    def suggestions(self) -> tuple[str, ...]:
        """Sentences on the changes that would help."""
        return tuple(self._suggestions())

    def plot(self, axes: Any = None) -> Any:
        """Draws the magnitudes of each direction by exponent, and the range of the type.

        Arguments, result and errors are those of `SchedulePlan.plot`.
        """
        axes = axes_or_new(axes, 8.0, 4.0)
        of = TypeRange.of(self.dtype)
        for direction, word in WORD_OF_DIRECTION.items():
            bins = histogram(self.magnitudes(direction))
            if bins:
                exponents, shares = zip(*bins, strict=True)
                axes.step(
                    exponents, shares, where="mid", label=direction.value, color=TERMS[word].colour
                )
        low, high = axes.get_xlim()
        low, high = min(low, of.zero - 2), max(high, of.overflow + 2)
        for begin, end, name, shade in (
            (low, of.zero - 0.5, "zero", 0.25),
            (of.zero - 0.5, of.normal - 0.5, "subnormal", 0.1),
            (of.overflow - 0.5, high, "infinite", 0.25),
        ):
            axes.axvspan(begin, end, color=TERMS["over the limit"].colour, alpha=shade, linewidth=0)
            axes.text(
                (begin + end) / 2, 1.0, name, ha="center", va="bottom", fontsize=8,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
        axes.set_xlim(low, high)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"exponent of two, with the limits of {of.name}")
        axes.set_ylabel("share of the numbers that are not zero")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.legend(frameon=False, fontsize=8)
        return axes

    def _parts(self, columns: int) -> Iterator[str | Table]:
        yield from self.sentences
        yield from (f"- {text}" for text in self._suggestions())
        yield ""
        shown = sorted(self.operations, key=_badness, reverse=True)[:_NUM_SHOWN]
        yield Table([_HEAD, *(_row(each, columns) for each in shown)], 2)
        if len(self.operations) > len(shown):
            yield f"and {len(self.operations) - len(shown)} values that lose less"
        yield from self.notes

    def _headline(self) -> str:
        name, scale = TypeRange.of(self.dtype).name, f"loss scale {self.loss_scaling:g}"
        if self.is_supposed:
            return (
                f"The model has no half precision ({scale}). Shares are those that {name} would "
                "lose, and errors are those of the run itself."
            )
        count = len(self.operations)
        return f"{name} is compared with a float64 reference: {count} values, {scale}."

    def _sentences(self) -> Iterator[str]:
        for each in self.gradients[:_NUM_MODULES]:
            if each.at_one >= _NOTABLE:
                yield self._of_module(each)
        if self.gradients and all(each.at_one < _NOTABLE for each in self.gradients):
            yield "In each module less than 1 % of the gradients underflow with loss scale 1."
        overflowing = [each for each in self.operations if each.overflow and self.counts(each)]
        if overflowing:
            first, count = overflowing[0], len(overflowing)
            several = f"{count} values overflow. The first one is"
            yield (
                f"{'One value overflows:' if count == 1 else several} {first.value.title} "
                f"{where(first.value)}, of which {_share(first.overflow)} becomes infinite."
            )
        count = sum(each.error == math.inf for each in self.operations)
        if count:
            yield (
                f"{'One value is' if count == 1 else f'{count} values are'} finite in the "
                "reference and not in the run. emulator.first_nonfinite names where that begins."
            )

    def counts(self, each: OperationNumbers) -> bool:
        """Returns whether a row is a half-precision value that an operation computes."""
        return self.has_half(each.value) and each.value.direction is not Direction.GIVEN

    def _of_module(self, each: ModuleGradients) -> str:
        parts = [f"{_share(each.at_one)} underflow with loss scale 1"]
        if self.loss_scaling != 1.0:
            parts.append(f"{_share(each.at_present)} with the present one")
        if self.best is not None and self.best.exponent > 0 and each.at_best is not None:
            parts.append(f"{_share(each.at_best)} with {power(self.best.exponent)}")
        return f"Of the gradients of {each.module or 'the model'}, {listed(parts)}."

    def _suggestions(self) -> Iterator[str]:
        best = self.best
        if best is not None and self.gradients:
            present, of = self.scaled_gradients, TypeRange.of(self.dtype)
            lost = present.underflow(of)
            if present.overflow(of) or lost > best.underflow + 1e-3:
                yield (
                    f"Give the optimizer loss_scaling={best.scale:g}, which is "
                    f"{power(best.exponent)}. None of the gradients overflows with "
                    f"it, and {_share(best.underflow)} of them underflow."
                )
            else:
                yield f"Keep the loss scale. {_share(lost)} of the gradients underflow."
        elif self.gradients:
            yield (
                "No loss scale keeps all gradients finite. Look at the operations that overflow."
            )
        for each in self.to_keep_wide()[:_NUM_MODULES]:
            yield (
                f"Compute {each.value.title} {where(each.value)}, and what it reads, in float32. "
                f"{_reason(each)}"
            )
        yield from self._about_updates()

    def _about_updates(self) -> Iterator[str]:
        if not self.updates:
            return
        worst = max(self.updates, key=lambda each: each.lost)
        several = sum(each.lost >= _NOTABLE for each in self.updates)
        if not several:
            yield "Round weights to the nearest. Less than 1 % of the updates are too small for it."
            return
        advice = (
            "Keep stochastic rounding on."
            if self.rounds_stochastically
            else "Call options.Precision.enableStochasticRounding(True), or use float32 weights."
        )
        yield (
            f"{advice} Rounding to the nearest loses updates of {several} of "
            f"{len(self.updates)} weights: {_share(worst.lost)} of those of '{worst.name}'."
        )


_HEAD = ["operation", "direction", "largest", "smallest", "over", "zero", "subn.", "error"]


def _row(each: OperationNumbers, columns: int) -> list[str]:
    value, found = each.value, each.magnitudes
    # The direction column tells whether a named tensor is a gradient or an updated weight.
    title = value.name.rpartition(" of ")[2] or f"{value.module} {value.title}".lstrip()
    is_any = found.num_nonzero > 0
    return [
        shortened(title, max(16, columns - _BESIDE_NAME)),
        value.direction.value,
        f"{found.largest:.1e}" if is_any else "-",
        f"{found.smallest:.1e}" if is_any else "-",
        *map(_cell, (each.overflow, each.flushed, each.subnormal)),
        "-" if each.error is None else f"{each.error:.0e}" if each.error else "0",
    ]


def _cell(share: float) -> str:
    return _share(share).replace(" ", "") if share else "0"


def _badness(each: OperationNumbers) -> tuple[float, float, float]:
    return each.overflow, each.underflow, each.error or 0.0


def _reason(each: OperationNumbers) -> str:
    if each.overflow:
        return f"{_share(each.overflow)} of its results overflow."
    assert each.error is not None, "its error is why it was chosen"
    return f"Its error is {each.error:.0e}, and that of its inputs {each.input_error:.0e}."


def power(exponent: int) -> str:
    """Returns a power of two with its exponent in superscript."""
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def histogram(found: Magnitudes) -> list[tuple[int, float]]:
    """Returns (exponent, share) for each bin of a histogram, with an empty bin at either end."""
    total = found.num_nonzero
    if not total:
        return []
    low, high = min(found.counts) - 1, max(found.counts) + 1
    return [(e, found.counts.get(e, 0) / total) for e in range(low, high + 1)]


def _share(share: float) -> str:
    if not share:
        return "0 %"
    if share < 5e-4:
        return "< 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"

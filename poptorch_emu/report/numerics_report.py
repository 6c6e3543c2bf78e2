"""What half precision loses in a window, as text and pictures for people."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poptorch_emu.numbers.magnitudes import Magnitudes, TypeRange
from poptorch_emu.numbers.numerics import ModuleGradients, Numerics, OperationNumbers
from poptorch_emu.numbers.run import Direction
from poptorch_emu.report.numbers_report import where
from poptorch_emu.report.pictures import axes_or_new
from poptorch_emu.report.printed_report import PrintedReport, Table
from poptorch_emu.report.terminal import shortened
from poptorch_emu.report.terms import TERMS

_NUM_SHOWN, _NUM_MODULES = 20, 3
# What stands beside the name of an operation.
_BESIDE_NAME = 62
# Shares below this are not worth a sentence. Assumed.
_NOTABLE = 0.01
# The word of the table of terms for each direction.
WORD_OF_DIRECTION = {
    Direction.GIVEN: "input",
    Direction.FORWARD: "forward",
    Direction.BACKWARD: "backward",
    Direction.UPDATE: "update",
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class NumericsReport(Numerics, PrintedReport):
    """What half precision loses, to be printed and drawn (exact).

    It has sentences about gradients and the loss scale, what to do, and the operations that lose
    most. Shares are of the numbers that are not zero.
    """

    @classmethod
    def of(cls, numerics: Numerics) -> NumericsReport:
        """Returns `numerics` with its text."""
        return cls(**vars(numerics))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, a sentence each."""
        return (self._headline(), *self._sentences())

    @property
    def suggestions(self) -> tuple[str, ...]:
        """What to do, a sentence each."""
        return tuple(self._suggestions())

    def plot(self, axes: Any = None) -> Any:
        """Draws the magnitudes of each direction by their exponents, and what the type holds.

        Args:
            axes: of matplotlib; by default those of a new figure.

        Returns:
            the axes.

        Raises:
            ImportError: matplotlib is not installed; it is the extra `report`.
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
        axes.set_xlabel(f"exponent of two, beside what {of.name} holds")
        axes.set_ylabel("share of the numbers that are not zero")
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.legend(frameon=False, fontsize=8)
        return axes

    def _parts(self, columns: int) -> Iterator[str | Table]:
        yield from self.sentences
        yield from (f"do: {text}" for text in self._suggestions())
        yield ""
        shown = sorted(self.operations, key=_badness, reverse=True)[:_NUM_SHOWN]
        yield Table([_HEAD, *(_row(each, columns) for each in shown)], 2)
        if len(self.operations) > len(shown):
            yield f"and {len(self.operations) - len(shown)} values that lose less"
        yield from self.notes

    def _headline(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        scale = f"loss scale {self.loss_scaling:g}"
        if self.is_supposed:
            return (
                f"nothing is of half precision; shares are those that {name} would have, errors "
                f"those of the run, {scale}"
            )
        return f"{name} against float64, {scale}, {len(self.operations)} values"

    def _sentences(self) -> Iterator[str]:
        for each in self.gradients[:_NUM_MODULES]:
            if each.at_one >= _NOTABLE:
                yield self._of_module(each)
        if self.gradients and all(each.at_one < _NOTABLE for each in self.gradients):
            yield "gradients: less than 1 % of those of each module underflow at scale 1"
        overflowing = [each for each in self.operations if each.overflow and self.counts(each)]
        if overflowing:
            first = overflowing[0]
            yield (
                f"{_values(len(overflowing), 'overflow')}, first {first.value.title} "
                f"{where(first.value)} by {_share(first.overflow)}"
            )
        num_nonfinite = sum(each.error == math.inf for each in self.operations)
        if num_nonfinite:
            yield (
                f"{_values(num_nonfinite, 'lose')} all digits, since the run is not finite there "
                "and the shadow is; emulator.first_nonfinite names the first"
            )

    def counts(self, each: OperationNumbers) -> bool:
        """Returns whether a row is one of half precision that an operation makes."""
        return self.has_half(each.value) and each.value.direction is not Direction.GIVEN

    def _of_module(self, each: ModuleGradients) -> str:
        text = f"gradients of {each.module or 'the model'} underflow by {_share(each.at_one)} "
        text += "at scale 1"
        if self.loss_scaling != 1.0:
            text += f" and by {_share(each.at_present)} at the present one"
        if self.best is not None and self.best.exponent > 0 and each.at_best is not None:
            text += f"; {power(self.best.exponent)} leaves {_share(each.at_best)}"
        return text

    def _suggestions(self) -> Iterator[str]:
        best = self.best
        if best is not None and self.gradients:
            present = round(math.log2(self.loss_scaling)) if self.loss_scaling > 0 else 0
            lost = next((s for s in self.scales if s.exponent == present), None)
            if lost is None or lost.overflow or lost.underflow > best.underflow + 1e-3:
                yield (
                    f"loss_scaling={best.scale:g} of the optimizer ({power(best.exponent)}) loses "
                    f"least: {_share(best.underflow)} of all gradients underflow, none overflow"
                )
            else:
                yield f"keep the loss scale: {_share(lost.underflow)} of all gradients underflow"
        elif self.gradients:
            yield "no loss scale keeps all gradients finite: see the operations that overflow"
        for each in self.to_keep_wide()[:_NUM_MODULES]:
            yield (
                f"compute {each.value.title} {where(each.value)} and what it reads in float32: "
                f"{_reason(each)}"
            )
        yield from self._about_updates()

    def _about_updates(self) -> Iterator[str]:
        if not self.updates:
            return
        worst = max(self.updates, key=lambda each: each.lost)
        several = sum(each.lost >= _NOTABLE for each in self.updates)
        if not several:
            yield "round weights to the nearest: less than 1 % of the updates are too small"
            return
        text = (
            f"updates of {several} of {len(self.updates)} weights are below half a unit in the "
            f"last place, of '{worst.name}' {_share(worst.lost)}: "
        )
        if self.rounds_stochastically:
            yield text + "keep stochastic rounding on"
        else:
            yield text + "options.Precision.enableStochasticRounding(True), or float32 weights"


_HEAD = ["operation", "direction", "largest", "smallest", "over", "zero", "subn.", "error"]


def _row(each: OperationNumbers, columns: int) -> list[str]:
    value, found = each.value, each.magnitudes
    # The direction says whether it is a gradient of a parameter, or its value after the update.
    title = value.name.rpartition(" of ")[2] or f"{value.module} {value.title}".lstrip()
    is_any = found.num_nonzero > 0
    return [
        shortened(title, max(16, columns - _BESIDE_NAME)),
        value.direction.value,
        f"{found.largest:.1e}" if is_any else "-",
        f"{found.smallest:.1e}" if is_any else "-",
        *map(_share, (each.overflow, each.flushed, each.subnormal)),
        "-" if each.error is None else f"{each.error:.0e}" if each.error else "0",
    ]


def _badness(each: OperationNumbers) -> tuple[float, float, float]:
    return each.overflow, each.underflow, each.error or 0.0


def _reason(each: OperationNumbers) -> str:
    if each.overflow:
        return f"{_share(each.overflow)} of its results overflow"
    assert each.error is not None, "its error is why it was chosen"
    return f"its error is {each.error:.0e}, that of its inputs {each.input_error:.0e}"


def power(exponent: int) -> str:
    """Returns a power of two as people write it."""
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def histogram(found: Magnitudes) -> list[tuple[int, float]]:
    """Returns the share of the numbers with each exponent, gaps and an empty one on each side."""
    total = found.num_nonzero
    if not total:
        return []
    low, high = min(found.counts) - 1, max(found.counts) + 1
    return [(e, found.counts.get(e, 0) / total) for e in range(low, high + 1)]


def _values(count: int, verb: str) -> str:
    return f"1 value {verb}s" if count == 1 else f"{count} values {verb}"


def _share(share: float) -> str:
    if not share:
        return "0"
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}" if share >= 5e-4 else "<0.1%"

"""Intervals in tables, and choices that the model cannot tell from the fastest one."""

from __future__ import annotations

import math

import pytest

from poptorch_emu.machine.spread import Figure, Subject, spread
from poptorch_emu.report.likely import likely_text
from poptorch_emu.report.what_if_report import Point, SweepReport, about_best

WORK = {Subject.WORK: 1.0}
FACTOR = math.exp(spread(WORK))


def point(name: str, rows_per_second: float, fits: str = "yes") -> Point:
    figure = Figure(rows_per_second, WORK)
    return Point((("name", name),), rows_per_second, 1.0, fits, "the host", figure)


@pytest.mark.parametrize(
    ("high", "text"),
    [(1234567, "to 1,230,000"), (123.4, "to 123"), (12.34, "to 12.3"), (0.01234, "to 0.0123")],
)
def test_interval_then_has_an_upper_limit_of_three_digits(high: float, text: str) -> None:
    assert likely_text(Figure(high / FACTOR, WORK)).endswith(text)


def test_interval_in_another_unit_then_is_divided_by_it() -> None:
    low, high = (1024 * 100 / FACTOR, 1024 * 100 * FACTOR)
    assert likely_text(Figure(1024 * 100, WORK), 1024) == f"{low / 1024:.0f} to {high / 1024:.0f}"
    assert likely_text(None) == "-"


def test_figure_when_printed_then_shows_its_interval_in_the_unit() -> None:
    low, high = 5839 / FACTOR, 5839 * FACTOR
    text = f"5,839 (likely {round(low, -1):,.0f} to {round(high, -1):,.0f})"
    assert str(Figure(5839.0, WORK)) == str(Figure(5839.0 * 1024, WORK) / 1024) == text
    assert str(Figure(2919.5, WORK) * 2) == text
    assert str(Figure(0.0, WORK)) == "0 (likely 0 to 0)"


def test_points_of_different_work_that_are_nearly_equal_then_are_about_the_same() -> None:
    mixed = Figure(1.01, {Subject.WORK: 0.5, Subject.HOST: 0.5})
    slow, quick = point("slow", 0.5), point("quick", 1.0)
    other = Point((("name", "other"),), 1.01, 1.0, "yes", "the host", mixed)
    large = point("large", 2.0, "no")
    assert about_best([slow, quick, other, large]) == (quick, other)
    assert about_best([slow, quick, large]) == ()
    assert about_best([large]) == ()
    marked = [line for line in str(SweepReport((slow, quick, other, large))).splitlines()]
    assert [" * " in line for line in marked[:5]] == [False, False, True, True, False]
    assert marked[-1].startswith("* about the same")
    assert "*" not in str(SweepReport((slow, quick, large)))


def test_best_when_a_faster_point_may_not_fit_then_is_the_fastest_that_fits() -> None:
    slow, quick = point("slow", 0.5), point("quick", 1.0)
    closer, large = point("closer", 3.0, "close"), point("large", 9.0, "no")
    sweep = SweepReport((slow, closer, quick, large))
    assert sweep.best() == quick
    assert "Faster than the best that fits, but may not fit: closer." in str(sweep)
    assert "may not fit: closer." in sweep._repr_html_()
    assert SweepReport((large, closer, point("near", 2.0, "close"))).best() == closer
    assert "may not fit" not in str(SweepReport((quick, point("near", 0.9, "close"))))
    with pytest.raises(ValueError, match="No choice fits"):
        SweepReport((large,)).best()


def test_points_that_may_not_fit_then_are_about_the_same_as_the_best_that_fits() -> None:
    quick, near, closer = point("quick", 1.0), point("near", 1.0, "close"), point("far", 3, "close")
    assert about_best([quick, near, closer]) == (quick, near)
    assert about_best([near, closer]) == ()

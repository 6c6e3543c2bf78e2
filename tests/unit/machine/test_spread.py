"""Intervals by hand, and comparisons of two figures of one model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.machine.spread import OVERHEADS, SPREADS, VERSIONS, Figure, Subject, spread

AMOUNTS = st.dictionaries(
    st.sampled_from([each for each in Subject if each is not Subject.SYSTEM]),
    st.floats(1e-6, 1e6),
    min_size=1,
)


def test_interval_of_two_subjects_then_adds_the_squares() -> None:
    figure = Figure(100.0, {Subject.WORK: 3.0, Subject.HOST: 1.0})
    width = math.hypot(VERSIONS, 0.75 * SPREADS[Subject.WORK], 0.25 * SPREADS[Subject.HOST])
    assert figure.interval == pytest.approx((100 * math.exp(-width), 100 * math.exp(width)))


def test_interval_of_two_overheads_then_adds_them_because_they_err_together() -> None:
    shares = {Subject.WORK: 0.4, Subject.HOST: 0.5, Subject.START: 0.1}
    together = 0.5 * SPREADS[Subject.HOST] + 0.1 * SPREADS[Subject.START]
    width = math.hypot(VERSIONS, 0.4 * SPREADS[Subject.WORK], together)
    assert spread(shares) == pytest.approx(width)


@given(AMOUNTS, st.floats(0.1, 10))
def test_interval_then_depends_on_shares_alone(amounts, factor) -> None:
    larger = {each: factor * amount for each, amount in amounts.items()}
    assert spread(larger) == pytest.approx(spread(amounts))
    largest = math.hypot(VERSIONS, max(SPREADS.values()))
    assert VERSIONS <= spread(amounts) <= largest * (1 + 1e-12)


@given(AMOUNTS)
def test_interval_of_an_unusual_system_then_is_wider(amounts) -> None:
    unusual = amounts | {Subject.SYSTEM: math.fsum(amounts.values())}
    assert spread(unusual) > spread(amounts)


@given(AMOUNTS, AMOUNTS)
def test_ratio_then_has_a_spread_that_does_not_depend_on_the_order(one, other) -> None:
    assert spread(one, other) == pytest.approx(spread(other, one))
    assert spread(one, one) == pytest.approx(VERSIONS)


def test_figures_of_one_model_then_differ_if_their_ratio_exceeds_its_spread() -> None:
    """A call that is left out is a gain in any case: its own error cannot exceed it."""
    work = {Subject.WORK: 1.0}
    slow = Figure(100.0, work | {Subject.HOST: 0.5})
    assert not slow.is_about(Figure(150.0, work))
    assert Figure(100.0, work).is_about(Figure(101.9, work))
    assert not Figure(100.0, work).is_about(Figure(102.1, work))
    # If one kind of time replaces another, the spreads of both count, also if they err together.
    for kind in OVERHEADS[:2]:
        assert slow.is_about(Figure(110.0, {Subject.WORK: 0.8, kind: 0.5}))

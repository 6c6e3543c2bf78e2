"""Slices of a trace, seen by a reader that counts whole nanoseconds, rounded or cut."""

from __future__ import annotations

import random

import pytest

from poptorch_emu.report.trace_operations import span


@pytest.mark.parametrize("whole", [int, round])
def test_slices_that_follow_each_other_then_never_overlap(whole):
    numbers, end = random.Random(0), 0.0
    last = 0
    for _ in range(20_000):
        duration = numbers.choice((0.0, 1e-4, 1 / 3, 0.0035, 17.25, 1e4)) * numbers.random()
        slice_ = span(end, duration)
        first, length = whole(slice_["ts"] * 1e3), whole(slice_["dur"] * 1e3)
        assert first >= last
        assert first == pytest.approx(end * 1e3, abs=0.51)
        end += duration
        last = first + length
        assert last == pytest.approx(end * 1e3, abs=0.51)

"""Compares waits for streaming memory with a simulation of two groups of IPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.plan.time.phase_overlap import PhaseWork, waiting_cycles
from poptorch_emu.schedule.actions import Kind

# Cycles that each phase loads, stores and computes.
phases = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=8
)


def works(rows, spacing: int = 1, num_ipus: int = 2):
    return {
        (Kind.FORWARD, stage): PhaseWork(
            spacing * stage, stage % num_ipus, float(load), float(store), float(compute)
        )
        for stage, (load, store, compute) in enumerate(rows)
    }


def simulated(rows) -> float:
    """Returns the cycles of all phases, from a simulation of one phase after the other.

    One link to streaming memory runs all transfers one after the other. A phase ends when both its
    computation and the transfers beside it are complete.
    """
    now = 0.0
    for stage in range(-1, len(rows) + 1):
        transfers = 0
        if stage + 1 < len(rows):
            transfers += rows[stage + 1][0]
        if stage - 1 >= 0:
            transfers += rows[stage - 1][1]
        computes = rows[stage][2] if 0 <= stage < len(rows) else 0
        now += max(computes, transfers)
    return now


@given(phases, st.sampled_from([1, 2]))
def test_phases_when_they_follow_each_other_then_take_what_a_simulation_does(rows, ipus) -> None:
    found = waiting_cycles(works(rows, num_ipus=ipus))
    total = sum(found.values()) + sum(compute for *_, compute in rows)
    assert total == pytest.approx(simulated(rows))


@given(phases)
def test_phases_when_there_is_time_between_them_then_wait_for_everything(rows) -> None:
    found = waiting_cycles(works(rows, spacing=2, num_ipus=1))
    assert list(found.values()) == [load + store for load, store, _ in rows]


@given(phases, st.integers(0, 7), st.integers(1, 9))
def test_phases_when_more_is_loaded_then_wait_no_less(rows, stage, more) -> None:
    load, store, compute = rows[stage % len(rows)]
    larger = list(rows)
    larger[stage % len(rows)] = (load + more, store, compute)
    before, after = (sum(waiting_cycles(works(row)).values()) for row in (rows, larger))
    assert before <= after <= before + more

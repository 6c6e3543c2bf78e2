"""The module `timeline` against worked examples and closed formulas."""

import pytest

from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.grouped import grouped
from poptorch_emu.schedule.interleaved import interleaved
from poptorch_emu.schedule.sequential import sequential
from poptorch_emu.schedule.timeline import busy_fractions, makespan, timeline


def costs(forward, backward=(), update=0.0):
    """Durations from one list per kind, by stage."""
    table = {Kind.FORWARD: forward, Kind.BACKWARD: backward}

    def duration(action):
        return update if action.kind is Kind.UPDATE else table[action.kind][action.stage]

    return duration


def test_timeline_when_two_stages_run_two_micro_batches_is_the_worked_example():
    times = timeline(grouped((0, 1), 2, True), costs([1.0, 2.0], [3.0, 4.0], update=10.0))
    assert times == {
        parse_action(text): span
        for text, span in {
            "0F0": (0, 1),
            "0F1": (1, 2),
            "1F0": (1, 3),
            "1B0": (3, 7),
            "1F1": (7, 9),
            "1B1": (9, 13),
            "0B0": (7, 10),
            "0B1": (13, 16),
            "0U0": (16, 26),
            "1U0": (13, 23),
        }.items()
    }
    assert makespan(times) == 26


# With equal stages whose backward costs no less than their forward, the last stage never waits
# once it has begun: N - 1 forwards before it, M pairs, N - 1 backwards after it.
@pytest.mark.parametrize("strategy", [grouped, interleaved])
@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 3), (4, 7), (4, 16)])
def test_makespan_when_pipelined_stages_are_equal_is_the_closed_formula(strategy, n, m):
    schedule = strategy(tuple(range(n)), m, True)
    times = timeline(schedule, costs([2.0] * n, [3.0] * n, update=7.0))
    assert makespan(times) == (m + n - 1) * 5.0 + 7.0


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "inference"])
def test_makespan_when_sequential_is_the_sum_of_all_work(is_training):
    forward, backward = [1.0, 2.0, 4.0], [8.0, 16.0, 32.0]
    schedule = sequential((0, 1, 0), 5, is_training)
    times = timeline(schedule, costs(forward, backward, update=3.0))
    work = sum(forward) + (sum(backward) if is_training else 0)
    assert makespan(times) == 5 * work + (3.0 if is_training else 0)


def test_makespan_when_inference_is_pipelined_waits_for_the_slowest_stage():
    forward = [1.0, 5.0, 2.0]
    times = timeline(grouped((0, 1, 2), 10, False), costs(forward))
    assert makespan(times) == sum(forward) + 9 * max(forward)


def test_busy_fractions_when_stages_are_equal_are_one_less_the_bubble():
    schedule = grouped((0, 1, 2, 3), 8, True)
    times = timeline(schedule, costs([1.0] * 4, [1.0] * 4))
    assert busy_fractions(schedule, times) == pytest.approx([8 / 11] * 4, rel=1e-12)


def test_busy_fractions_when_there_is_one_ipu_are_one():
    schedule = sequential((0, 0), 3, True)
    times = timeline(schedule, costs([1.0, 2.0], [3.0, 4.0], update=5.0))
    assert busy_fractions(schedule, times) == (1.0,)


def test_busy_fractions_when_nothing_takes_time_are_zero():
    schedule = sequential((0, 1), 1, False)
    assert busy_fractions(schedule, timeline(schedule, lambda _: 0.0)) == (0.0, 0.0)

"""Latencies from invented times, compared with numbers computed by hand."""

import pytest

from poptorch_emu.report.latency import counters, latency

SECOND = 1_000_000_000
TIMES = counters(
    # Two inputs of two pieces each, one output: [begin, end] in seconds.
    [[(0, SECOND), (10 * SECOND, 11 * SECOND)], [(2 * SECOND, 4 * SECOND), (9 * SECOND, SECOND)]],
    [[(6 * SECOND, 7 * SECOND), (20 * SECOND, 24 * SECOND)]],
)


def test_counters_then_ascending_for_each_tensor():
    assert TIMES == {
        "input": [[0.0, 10.0], [2.0, 9.0]],
        "input_complete": [[1.0, 11.0], [1.0, 4.0]],
        "output": [[6.0, 20.0]],
        "output_complete": [[7.0, 24.0]],
    }


def test_counters_without_tensors_then_one_empty_list():
    assert counters([], []) == dict.fromkeys(TIMES, [[]])


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (("input", min), ("output_complete", max), [7, 15]),  # 0 to 7, and 9 to 24.
        (("input", min), ("input_complete", max), [1, 2]),  # 0 to 1, and 9 to 11.
        (("input_complete", max), ("output", max), [5, 9]),  # 1 to 6, and 11 to 20.
        (("output", min), ("output_complete", max), [1, 4]),
    ],
)
def test_latency_then_shortest_longest_and_mean(start, end, expected):
    assert latency(TIMES, start, end) == (*sorted(expected), sum(expected) / 2)


def test_latency_with_more_inputs_than_outputs_then_each_share_counts_from_its_first():
    times = {"input": [[0.0, 1.0, 2.0, 5.0, 6.0, 8.0]], "output_complete": [[4.0, 10.0]]}
    assert latency(times, ("input", min), ("output_complete", max)) == (4.0, 5.0, 4.5)


@pytest.mark.parametrize("end", ["input", "output"])
def test_latency_without_events_then_zeros(end):
    times = {"input": [[]], "output": [[1.0]], "output_complete": [[]]}
    assert latency(times, (end, min), ("output_complete", max)) == (0.0, 0.0, 0.0)

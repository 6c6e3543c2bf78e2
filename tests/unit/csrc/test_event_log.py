"""The events of a long run: first and last calls whole, the rest counted."""

import pytest
import torch
from hand_built import executor, pipeline

IN_EACH_ORDER = True

NUM_IPUS, NUM_MICRO_BATCHES = 2, 3
EVENTS_OF_A_CALL = NUM_IPUS * NUM_MICRO_BATCHES  # of one window, on one replica


def traced(max_events, num_calls, num_windows=1, workers=1):
    """Returns an executor after so many calls with tracing on."""
    engine = executor(pipeline(NUM_IPUS, NUM_MICRO_BATCHES), workers=workers)
    engine.set_tracing(True, max_events)
    for _ in range(num_calls):
        engine.run([torch.ones(NUM_MICRO_BATCHES * num_windows, 1)], num_windows)
    return engine


def starts_of(events, size=EVENTS_OF_A_CALL):
    """Returns when each call began, of calls that are whole; they come one after the other."""
    calls = [events[first : first + size] for first in range(0, len(events), size)]
    for call in calls:
        assert {(e.ipu, e.micro_batch) for e in call} == {
            (ipu, m) for ipu in range(NUM_IPUS) for m in range(NUM_MICRO_BATCHES)
        }
    return [min(event.start_ns for event in call) for call in calls]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("max_events", "num_kept"),
    [(4 * EVENTS_OF_A_CALL, 4), (4 * EVENTS_OF_A_CALL - 1, 2), (4 * EVENTS_OF_A_CALL + 2, 4)],
    ids=["fits", "one-less", "two-more"],
)
def test_events_of_a_long_run_then_first_and_last_calls_are_whole(max_events, num_kept, workers):
    engine = traced(max_events, 7, workers=workers)
    assert engine.num_dropped_events() == (7 - num_kept) * EVENTS_OF_A_CALL
    events = engine.take_events()
    assert len(events) == num_kept * EVENTS_OF_A_CALL
    starts = starts_of(events)
    assert starts == sorted(starts)


def test_events_of_a_long_run_then_the_gap_is_in_the_middle():
    max_events = 4 * EVENTS_OF_A_CALL
    engine = executor(pipeline(NUM_IPUS, NUM_MICRO_BATCHES))
    engine.set_tracing(True, max_events)
    every_start = []
    for _ in range(9):
        engine.run([torch.ones(NUM_MICRO_BATCHES, 1)], 1)
        every_start.append(engine.input_spans()[0][0][0])
    starts = starts_of(engine.take_events())
    # The first input is read within the call's first action.
    seen = [sum(start <= begin for begin in every_start) for start in starts]
    assert [9 - count for count in seen] == [0, 1, 7, 8]


@pytest.mark.parametrize(("num_calls", "num_dropped"), [(4, 0), (5, EVENTS_OF_A_CALL)])
def test_events_at_the_bound_then_all_are_kept_and_one_call_more_is_counted(num_calls, num_dropped):
    engine = traced(4 * EVENTS_OF_A_CALL, num_calls)
    assert engine.num_dropped_events() == num_dropped
    assert len(engine.take_events()) == 4 * EVENTS_OF_A_CALL


def test_events_of_a_call_longer_than_half_the_bound_then_its_beginning_is_kept():
    engine = traced(2 * EVENTS_OF_A_CALL, 1, num_windows=3)
    assert engine.num_dropped_events() == 2 * EVENTS_OF_A_CALL
    assert [event.window for event in engine.take_events()] == [0] * EVENTS_OF_A_CALL


def test_events_when_taken_then_the_log_begins_anew():
    engine = traced(2 * EVENTS_OF_A_CALL, 5)
    assert engine.num_dropped_events() == 3 * EVENTS_OF_A_CALL
    engine.take_events()
    assert engine.num_dropped_events() == 0 and engine.take_events() == []
    engine.run([torch.ones(NUM_MICRO_BATCHES, 1)], 1)
    assert len(engine.take_events()) == EVENTS_OF_A_CALL


def test_events_without_a_bound_of_the_callers_then_two_hundred_thousand():
    engine = executor(pipeline(NUM_IPUS, NUM_MICRO_BATCHES))
    engine.set_tracing(True)
    num_windows = 100_000 // EVENTS_OF_A_CALL + 1
    engine.run([torch.ones(NUM_MICRO_BATCHES * num_windows, 1)], num_windows)
    assert engine.num_dropped_events() == num_windows * EVENTS_OF_A_CALL - 100_000
    assert len(engine.take_events()) == 100_000

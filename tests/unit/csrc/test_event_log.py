"""The events of calls: complete and in the order of the calls, up to a limit."""

import pytest
import torch
from hand_built import executor, pipeline, take_events

IN_EACH_ORDER = True

NUM_IPUS, NUM_MICRO_BATCHES, MOST_EVENTS = 2, 3, 100_000
EVENTS_OF_A_CALL = NUM_IPUS * NUM_MICRO_BATCHES  # of one window, on one replica


def traced(workers=1):
    engine = executor(pipeline(NUM_IPUS, NUM_MICRO_BATCHES), workers=workers)
    engine.set_tracing(True)
    return engine


def run(engine, num_windows=1):
    engine.run([torch.ones(NUM_MICRO_BATCHES * num_windows, 1)], num_windows)


@pytest.mark.parametrize("workers", [1, 2])
def test_events_of_several_calls_then_each_is_whole_and_they_come_in_order(workers):
    engine = traced(workers)
    for _ in range(3):
        run(engine)
    events = take_events(engine)
    calls = [events[first : first + EVENTS_OF_A_CALL] for first in range(0, len(events), 6)]
    assert len(calls) == 3
    for call in calls:
        assert {(e.ipu, e.micro_batch) for e in call} == {
            (ipu, m) for ipu in range(NUM_IPUS) for m in range(NUM_MICRO_BATCHES)
        }
    starts = [min(event.start_ns for event in call) for call in calls]
    assert starts == sorted(starts)


def test_events_when_taken_then_the_log_begins_anew():
    engine = traced()
    run(engine)
    assert len(take_events(engine)) == EVENTS_OF_A_CALL
    assert take_events(engine) == []
    run(engine)
    assert len(take_events(engine)) == EVENTS_OF_A_CALL


def test_events_of_a_long_call_then_the_first_hundred_thousand_are_there():
    engine = traced()
    num_windows = MOST_EVENTS // EVENTS_OF_A_CALL + 1
    run(engine, num_windows)
    events = take_events(engine)
    assert len(events) == MOST_EVENTS
    assert [e.window for e in events] == [i // EVENTS_OF_A_CALL for i in range(MOST_EVENTS)]

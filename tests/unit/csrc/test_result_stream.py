"""Results that are read while a call runs, in programs built by hand."""

import threading
import time

import pytest
import torch
from hand_built import ALL, WINDOW, Reg, add, executor, one_segment

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

WINDOWS, PER_WINDOW = 3, 2


def with_window_output(mode=_C.OutputMode.SUM):
    """Returns a program with an output of each micro-batch, x + 1, and two further ones.

    One is of each window, their sum, and the last one is the input again, in another mode.
    """
    program, segment = one_segment(num_micro_batches=PER_WINDOW)
    add(program, segment, "add.Tensor", [Reg(0), 1.0], [1])
    program.store_output(segment, 1, ALL, 1)
    total = program.add_accumulator("total", torch.float32, False)
    program.accumulate(segment, 1, total)
    update = program.add_segment("update", 0, WINDOW)
    program.load_accumulator(update, 0, total)
    program.store_output(update, 0, ALL, 1)
    program.store_output(segment, 0, mode, 1)
    program.set_schedule([[*((segment, m) for m in range(PER_WINDOW)), (update, 0)]], PER_WINDOW)
    return program


def streamed(engine, inputs, windows):
    """Runs a call and returns its results and those that were streamed, one for each step."""
    outputs = engine.run(inputs, windows)
    results = []
    while result := engine.take_result():
        results.append(result)
    engine.end_stream()
    return outputs, results


def test_stream_when_a_window_has_an_output_then_the_first_ones_are_streamed_alone():
    engine = executor(with_window_output())
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    engine.begin_stream(100, PER_WINDOW, 1)
    outputs, results = streamed(engine, [x], WINDOWS)
    assert [[tensor.tolist() for tensor in result] for result in results] == [
        [[1.0, 2.0]],
        [[3.0, 4.0]],
        [[5.0, 6.0]],
    ]
    assert [tensor.tolist() for tensor in outputs] == [
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [3.0, 7.0, 11.0],
        [15.0],
    ]


@pytest.mark.parametrize(
    ("num_outputs", "text"),
    [
        (0, "A stream of 0 outputs was asked for, but the program has 3"),
        (4, "A stream of 4 outputs was asked for, but the program has 3"),
        (2, "Output 1 cannot be streamed: it must have the mode All and come from micro-batches"),
    ],
)
def test_stream_when_outputs_cannot_be_streamed_then_refused(num_outputs, text):
    with pytest.raises(Error, match=text):
        executor(with_window_output()).begin_stream(2, PER_WINDOW, num_outputs)


def test_stream_when_an_output_has_another_mode_then_refused():
    program, segment = one_segment()
    program.store_output(segment, 0, _C.OutputMode.FINAL, 1)
    with pytest.raises(Error, match="Output 0 cannot be streamed"):
        executor(program).begin_stream(2, 1, 1)


def test_call_that_steps_do_not_divide_then_refused_and_the_next_one_runs():
    engine = executor(with_window_output())
    engine.begin_stream(100, 4, 1)
    with pytest.raises(Error, match="A call of 6 micro-batches .* in steps of 4, which"):
        engine.run([torch.ones(6)], 3)
    assert engine.take_result() == []
    engine.begin_stream(100, 4, 1)
    _, results = streamed(engine, [torch.ones(8)], 4)
    assert [result[0].tolist() for result in results] == [[2.0] * 4] * 2


def test_results_when_all_are_taken_then_each_comes_once():
    engine = executor(with_window_output())
    assert engine.take_results() == (0, [])
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    engine.begin_stream(100, 1, 1)
    engine.run([x], WINDOWS)
    assert len(engine.take_result()) == 1
    count, (taken,) = engine.take_results()
    assert (count, taken.flatten().tolist()) == (5, [2.0, 3.0, 4.0, 5.0, 6.0])
    assert engine.take_results() == (0, [])
    engine.end_stream()


@pytest.mark.parametrize("is_over", [False, True], ids=["during the call", "after the call"])
def test_results_when_waited_for_then_the_end_of_the_call_ends_the_wait(is_over):
    engine = executor(with_window_output())
    x = torch.arange(float(WINDOWS * PER_WINDOW))
    engine.begin_stream(100, 1, 1)
    call = threading.Thread(target=engine.run, args=([x], WINDOWS))
    call.start()
    if is_over:
        call.join()
    start = time.perf_counter()
    count, (found,) = engine.wait_for_results(60_000_000)
    assert time.perf_counter() - start < 30
    assert (count, found.flatten().tolist()) == (6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert engine.wait_for_results(60_000_000) == (0, [])
    call.join()
    engine.end_stream()


def test_results_when_waited_for_without_a_call_then_there_are_none():
    engine = executor(with_window_output())
    assert engine.wait_for_results(60_000_000) == (0, [])

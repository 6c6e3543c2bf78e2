"""Times of transfers between host and device, also of outputs that exist once in a window."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C

FLOAT = torch.float32


def program_with_two_readers(num_micro_batches=2, mode=ALL):
    """Returns a program in which both IPUs read the first input, and none reads the second one."""
    program = _C.Program()
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 1, MICRO_BATCH)
    x = program.add_input("x", True)
    program.add_input("unused", True)
    for segment in (first, second):
        program.load_input(segment, 0, x)
    add(program, first, "mul.Tensor", [Reg(0), 2.0], [1])
    program.add_link(first, [1], second, [1], 1)
    add(program, second, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(second, 2, mode, 1)
    program.set_schedule([[(s, m) for m in range(num_micro_batches)] for s in (first, second)], 2)
    return program


@pytest.mark.parametrize("workers", [1, 2])
def test_spans_then_one_for_each_piece_and_inputs_count_at_their_first_reader(workers):
    engine = executor(program_with_two_readers(), replicas=2, workers=workers)
    assert engine.input_spans() == [] and engine.output_spans() == []
    x = torch.ones(8)
    engine.run([x, x], 2)
    read, unread = engine.input_spans()
    (output,) = engine.output_spans()
    assert [len(spans) for spans in (read, unread, output)] == [8, 8, 8]
    # The second stage computes the output after the first stage has read the input.
    for (start, end), (out_start, out_end) in zip(read, output, strict=True):
        assert unread[0][0] <= start <= end <= out_start <= out_end


def test_spans_when_asked_for_in_a_call_then_are_those_of_the_call_before():
    program = program_with_two_readers()
    debug = _C.Debug("look")
    program.add_instruction(
        0, "poptorch_emu::host_call", "", ["look", [Reg(0)], []], {}, [], [], debug
    )
    program.set_seen_outside(0)
    engine = executor(program, follows_lists=True)
    seen = []

    def look(*_):
        seen.append((engine.input_spans(), engine.output_spans()))
        return []

    engine.set_host_function("look", look)
    x = torch.ones(2)
    engine.run([x, x], 1)
    spans = engine.input_spans(), engine.output_spans()
    engine.run([x, x], 1)
    assert seen == [([], [])] * 2 + [spans] * 2
    assert (engine.input_spans(), engine.output_spans()) != spans


def test_spans_when_only_the_last_piece_is_kept_then_one_for_each_replica():
    engine = executor(program_with_two_readers(mode=_C.OutputMode.FINAL), replicas=2)
    x = torch.ones(8)
    engine.run([x, x], 2)
    assert len(engine.output_spans()[0]) == 2
    begin = [start for start, _ in engine.output_spans()[0]]
    assert min(begin) >= engine.input_spans()[0][0][1]


@pytest.mark.parametrize(
    ("mode", "period", "expected"),
    [
        (_C.OutputMode.ALL, 1, [3.0, 3.0, 10.0, 10.0, 21.0, 21.0, 36.0, 36.0]),
        (_C.OutputMode.FINAL, 1, [36.0, 36.0]),
        (_C.OutputMode.SUM, 1, [70.0, 70.0]),
        (_C.OutputMode.EVERY_N, 2, [10.0, 10.0, 36.0, 36.0]),
    ],
    ids=["all", "final", "sum", "every-2"],
)
def test_output_of_a_window_then_gathered_by_windows_and_the_same_for_each_replica(
    mode, period, expected
):
    program = _C.Program()
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    total = program.add_variable("total", [], FLOAT, False)
    seen = program.add_accumulator("seen", FLOAT, False)
    program.load_input(forward, 0, program.add_input("x", True))
    add(program, forward, "sum", [Reg(0)], [1])
    program.accumulate(forward, 1, seen)
    reduce = program.add_segment("reduce", 0, WINDOW)
    program.set_runners(reduce, [0, 1])
    program.reduce(reduce, seen)
    program.load_accumulator(update, 0, seen)
    program.load_variable(update, 1, total)
    add(program, update, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(update, 2, mode, period)
    program.store_variable(update, 2, total)
    program.set_schedule([[(forward, 0), (reduce, 0), (update, 0)]], 1)
    engine = executor(program, replicas=2)
    (result,) = engine.run([torch.arange(1.0, 9.0)], 4)
    assert result.tolist() == expected

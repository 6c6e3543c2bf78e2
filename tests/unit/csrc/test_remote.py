"""Streaming memory in programs built by hand: the copied bytes, and unchanged numbers."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

N = 3


def two_segments(*, is_remote):
    """Forward sends x + 1 and x + 2 to backward on two links; only the second may be remote."""
    program = _C.Program()
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 0, MICRO_BATCH)
    program.load_input(first, 0, program.add_input("x", True))
    add(program, first, "add.Tensor", [Reg(0), 1.0], [1])
    add(program, first, "add.Tensor", [Reg(0), 2.0], [2])
    program.add_link(first, [1], second, [0], 1)
    link = program.add_link(first, [2], second, [1], 1) if is_remote else None
    if link is not None:
        program.set_remote_link(link)
    add(program, second, "mul.Tensor", [Reg(0), Reg(1) if is_remote else 2.0], [2])
    program.store_output(second, 2, ALL, 1)
    program.set_schedule([[(s, m) for m in range(N) for s in (first, second)]], N)
    return program


def test_remote_link_when_beside_a_local_one_then_only_its_items_move():
    engine = executor(two_segments(is_remote=True), follows_lists=True)
    x = torch.arange(6.0)
    (result,) = engine.run([x], 1)
    assert torch.equal(result, (x + 1) * (x + 2))
    assert engine.remote_stored_bytes() == engine.remote_loaded_bytes() == 6 * 4
    assert [items for items, _ in engine.link_peaks()] == [1, 1]


def test_local_links_when_run_then_nothing_moves():
    engine = executor(two_segments(is_remote=False))
    engine.run([torch.arange(6.0)], 1)
    assert engine.remote_stored_bytes() == engine.remote_loaded_bytes() == 0


def accumulating(*, is_remote):
    """Adds up the rows of an input, and adds the sum to a variable at the end of each window."""
    program = _C.Program()
    variable = program.add_variable("w", [2], torch.float32, False)
    accumulator = program.add_accumulator("g", torch.float32, False)
    if is_remote:
        program.set_remote_variable(variable)
        program.set_remote_accumulator(accumulator)
    segment = program.add_segment("add", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    add(program, segment, "sum.dim_IntList", [Reg(0), [0]], [1])
    program.accumulate(segment, 1, accumulator)
    update = program.add_segment("update", 0, WINDOW)
    program.load_variable(update, 0, variable)
    program.load_accumulator(update, 1, accumulator)
    add(program, update, "add.Tensor", [Reg(0), Reg(1)], [2])
    program.store_variable(update, 2, variable)
    program.set_schedule([[*((segment, m) for m in range(N)), (update, 0)]], N)
    return program


def test_remote_variable_when_updated_then_equals_a_local_one_and_each_use_is_copied():
    x = torch.randn(2 * N, 2)
    values = []
    for is_remote in (False, True):
        engine = executor(accumulating(is_remote=is_remote))
        engine.write_variable(0, 0, torch.ones(2))
        engine.run([x], 2)
        values.append(engine.read_variable(0, 0))
    assert torch.equal(*values)
    torch.testing.assert_close(values[0], 1 + x.sum(dim=0))
    num_bytes, windows = 2 * 4, 2
    # In a window the sum goes away N times and comes back N - 1 times and once for the update;
    # the variable comes once and goes once.
    assert engine.remote_stored_bytes() == windows * (N + 1) * num_bytes
    assert engine.remote_loaded_bytes() == windows * (N + 1) * num_bytes


def test_remote_variable_when_a_run_fails_then_is_that_of_the_last_window():
    program = accumulating(is_remote=True)
    engine = executor(program)
    engine.write_variable(0, 0, torch.ones(2))
    with pytest.raises(Error, match="Exception while executing node"):
        engine.run([torch.ones(2 * N, 3)], 2)
    assert torch.equal(engine.read_variable(0, 0), torch.ones(2))


def summing(*, is_remote, replicas):
    """Adds up one input of each replica over the replicas, into a variable of 4 numbers."""
    program = _C.Program()
    total = program.add_variable("total", [4], torch.float32, False)
    accumulator = program.add_accumulator("g", torch.float32, False)
    if is_remote:
        program.set_remote_accumulator(accumulator)
    segment = program.add_segment("add", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    program.accumulate(segment, 0, accumulator)
    reduce = program.add_segment("reduce", 0, WINDOW)
    program.set_runners(reduce, range(replicas))
    program.reduce(reduce, accumulator)
    update = program.add_segment("update", 0, WINDOW)
    program.load_accumulator(update, 0, accumulator)
    program.store_variable(update, 0, total)
    program.set_schedule([[(segment, 0), (reduce, 0), (update, 0)]], 1)
    return program


def test_remote_accumulator_when_added_up_over_replicas_then_each_sum_comes_and_the_total_goes():
    x = torch.randn(2, 4)
    values = []
    for is_remote in (False, True):
        engine = executor(summing(is_remote=is_remote, replicas=2), replicas=2, workers=2)
        engine.run([x.flatten()], 1)
        values.append(engine.read_variable(0, 0))
    assert torch.equal(*values)
    torch.testing.assert_close(values[0], x.sum(dim=0))
    num_bytes = 4 * 4
    # Each replica's sum goes once, and the total once; each sum comes once for the total, and the
    # total once for the update.
    assert engine.remote_stored_bytes() == 3 * num_bytes
    assert engine.remote_loaded_bytes() == 3 * num_bytes

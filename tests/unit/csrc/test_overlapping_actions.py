"""Several micro-batches at once in one segment: the conditions for it, and equal results."""

import itertools

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, take_events

from poptorch_emu import _C

WIDTH = 384  # A product of this size takes long enough for another worker to begin one as well.
N = 6


def chain(program, segment, source, target):
    """Adds two products with the same weight; register 9 holds it."""
    add(program, segment, "mm", [Reg(source), Reg(9)], [8])
    add(program, segment, "mm", [Reg(8), Reg(9)], [target])


def one_segment(*, writes=False):
    """y = x W W for each micro-batch; with `writes` it also stores y as a variable."""
    program = _C.Program()
    weight = program.add_variable("weight", [WIDTH, WIDTH], torch.float32, False)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_variable(segment, 9, weight)
    program.load_input(segment, 0, program.add_input("x", True))
    chain(program, segment, 0, 1)
    program.store_output(segment, 1, ALL, 1)
    if writes:
        kept = program.add_variable("kept", [WIDTH, WIDTH], torch.float32, False)
        program.store_variable(segment, 1, kept)
    program.set_schedule([[(segment, index) for index in range(N)]], N)
    return program


def with_packed_weight():
    """Returns a program for y = x W^T in each micro-batch, by oneDNN with a packed W."""
    program = _C.Program()
    weight = program.add_variable("weight", [WIDTH, WIDTH], torch.float32, False)
    preparation = program.add_segment("prepare", 0, _C.SegmentKind.PREPARATION)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_variable(preparation, 0, weight)
    program.load_prepared(segment, 9, preparation, 1)
    program.load_input(segment, 0, program.add_input("x", True))
    for where, name, args in (
        (preparation, "_reorder_linear_weight", [Reg(0), WIDTH]),
        (segment, "_linear_pointwise", [Reg(0), Reg(9), None, "none", [], ""]),
    ):
        debug = _C.Debug(name)
        program.add_instruction(where, f"mkldnn::{name}", "", args, {}, [1], [], debug)
    program.store_output(segment, 1, ALL, 1)
    program.set_schedule([[(segment, index) for index in range(N)]], N)
    return program


def training():
    """Sums the gradients of N micro-batches, forward and backward linked, and stores the sum."""
    program = _C.Program()
    weight = program.add_variable("weight", [WIDTH, WIDTH], torch.float32, False)
    forward = program.add_segment("forward", 0, MICRO_BATCH)
    backward = program.add_segment("backward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    for segment in (forward, backward):
        program.load_variable(segment, 9, weight)
    program.load_input(forward, 0, program.add_input("x", True))
    chain(program, forward, 0, 1)
    chain(program, backward, 0, 1)
    program.add_link(forward, [1], backward, [0], 3)
    total = program.add_accumulator("weight", torch.float32, False)
    program.accumulate(backward, 1, total)
    program.load_accumulator(update, 0, total)
    add(program, update, "mul.Tensor", [Reg(0), 1e-6], [1])
    program.store_variable(update, 1, weight)
    order = [(forward, 0), (forward, 1), (forward, 2)]
    for index in range(N):
        order += [(backward, index), *[(forward, index + 3)][: index + 3 < N]]
    program.set_schedule([[*order, (update, 0)]], N)
    return program


def overlapping(events):
    """Returns how many pairs of events on one virtual IPU overlap."""
    pairs = itertools.combinations(events, 2)
    return sum(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a, b in pairs)


def run(program, workers, windows, weight, x):
    """Returns outputs, the weight afterwards, and the events."""
    engine = executor(program, workers=workers)
    engine.write_variable(0, 0, weight)
    engine.set_tracing(True)
    outputs = engine.run([x], windows)
    return outputs, engine.read_variable(0, 0), take_events(engine)


def test_micro_batches_when_independent_then_overlap_and_come_out_in_order():
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(20 * N * WIDTH, WIDTH)
    (alone,), _, events = run(one_segment(), 1, 20, weight, x)
    torch.testing.assert_close(alone, x @ weight @ weight, rtol=1e-4, atol=1e-2)
    assert overlapping(events) == 0
    for workers in (2, 4):
        (out,), _, events = run(one_segment(), workers, 20, weight, x)
        assert torch.equal(out, alone)
        assert overlapping(events) > 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
@pytest.mark.parametrize("workers", [1, 3])
def test_micro_batches_when_they_share_a_packed_weight_then_overlap(workers):
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(20 * N * WIDTH, WIDTH)
    (out,), _, events = run(with_packed_weight(), workers, 20, weight, x)
    torch.testing.assert_close(out, x @ weight.t(), rtol=1e-4, atol=1e-3)
    assert (overlapping(events) > 0) == (workers > 1)


def test_micro_batches_when_one_writes_a_variable_then_run_one_by_one():
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(5 * N * WIDTH, WIDTH)
    _, _, events = run(one_segment(writes=True), 4, 5, weight, x)
    assert len(events) == 5 * N
    assert overlapping(events) == 0


def test_gradients_when_micro_batches_overlap_then_are_added_in_the_same_order():
    weight, x = torch.randn(WIDTH, WIDTH), torch.randn(10 * N * WIDTH, WIDTH)
    _, expected, _ = run(training(), 1, 10, weight, x)
    for workers in (2, 3, 2, 3):
        _, trained, events = run(training(), workers, 10, weight, x)
        assert torch.equal(trained, expected)
    updates = [event for event in events if event.segment == 2]
    for update in updates:
        assert overlapping([update, *(e for e in events if e.segment != 2)]) == overlapping(
            [e for e in events if e.segment != 2]
        )


def test_call_when_an_overlapping_action_fails_then_the_next_one_runs():
    program = _C.Program()
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    program.load_input(segment, 9, program.add_input("w", False))
    chain(program, segment, 0, 1)
    add(program, segment, "linalg_cholesky", [Reg(1)], [2])
    program.store_output(segment, 2, ALL, 1)
    program.set_schedule([[(segment, index) for index in range(N)]], N)
    engine = executor(program, workers=3)
    good = torch.eye(WIDTH).repeat(N, 1)
    engine.run([good, torch.eye(WIDTH)], 1)
    bad = good.clone()
    bad[3 * WIDTH : 4 * WIDTH] *= -1
    for _ in range(5):
        with pytest.raises(Exception, match="cholesky"):
            engine.run([bad, torch.eye(WIDTH)], 1)
        (out,) = engine.run([good, torch.eye(WIDTH)], 1)
        assert torch.equal(out, good)

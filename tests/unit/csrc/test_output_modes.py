"""Outputs of all micro-batches and replicas as one tensor, compared with NumPy.

The reference states the rule of the PopTorch reference, "How outputs are gathered": pieces are
ordered by micro-batch, replica innermost; one piece is unchanged, several are joined along the
first dimension, and scalars become a vector.
"""

import numpy as np
import pytest
import torch
from hand_built import Reg, add, executor, one_segment

from poptorch_emu import _C

IN_EACH_ORDER = True

pytestmark = pytest.mark.feature("Output modes", fidelity="exact")

Mode = _C.OutputMode


def reference(pieces, mode, period):
    """Joins `pieces`, an array of shape (micro-batches, replicas, *shape of one piece)."""
    if mode == Mode.FINAL:
        pieces = pieces[-1:]
    elif mode == Mode.SUM:
        pieces = pieces.sum(axis=0, keepdims=True)
    elif mode == Mode.EVERY_N:
        pieces = pieces[period - 1 :: period]
    flat = pieces.reshape(-1, *pieces.shape[2:])
    if len(flat) == 1:
        return flat[0]
    return flat if flat.ndim == 1 else flat.reshape(-1, *flat.shape[2:])


MODES = pytest.mark.parametrize(
    ("mode", "period"),
    [(Mode.ALL, 1), (Mode.FINAL, 1), (Mode.SUM, 1), (Mode.EVERY_N, 2), (Mode.EVERY_N, 4)],
    ids=["all", "final", "sum", "every-2", "every-4"],
)
REPLICAS = pytest.mark.parametrize("replicas", [1, 3], ids=["R1", "R3"])


@MODES
@REPLICAS
@pytest.mark.parametrize(
    ("windows", "per_window"), [(1, 4), (4, 1), (2, 2)], ids=["1x4", "4x1", "2x2"]
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["scalar", "vector", "matrix"])
def test_output_then_it_is_gathered_by_its_mode(mode, period, replicas, windows, per_window, shape):
    program, segment = one_segment(num_micro_batches=per_window)
    row_shape = shape or (1,)
    add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1])
    add(program, segment, "reshape", [Reg(1), list(shape)], [2])
    program.store_output(segment, 2, mode, period)
    pieces = np.arange(4 * replicas * np.prod(row_shape), dtype=np.float32)
    pieces = pieces.reshape(4, replicas, *row_shape)
    rows = torch.from_numpy(pieces.reshape(-1, *row_shape[1:]))

    (result,) = executor(program, replicas=replicas).run([rows], windows)

    expected = reference(2 * pieces.reshape(4, replicas, *shape), mode, period)
    assert tuple(result.shape) == expected.shape
    np.testing.assert_array_equal(result.numpy(), expected)


@MODES
def test_one_micro_batch_of_one_replica_then_output_keeps_its_shape(mode, period):
    program, segment = one_segment()
    add(program, segment, "sum", [Reg(0)], [1])
    program.store_output(segment, 1, mode, 1)
    (result,) = executor(program).run([torch.arange(4.0)], 1)
    assert (result.shape, result.item()) == ((), 6.0)


def test_same_register_in_several_outputs_then_tensors_are_apart():
    program, segment = one_segment(num_micro_batches=2)
    for mode in (Mode.ALL, Mode.SUM, Mode.ALL):
        program.store_output(segment, 0, mode, 1)
    x = torch.arange(4.0)
    everything, total, again = executor(program).run([x], 1)
    everything.zero_()
    assert (total.tolist(), again.tolist()) == ([2.0, 4.0], [0.0, 1.0, 2.0, 3.0])
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_second_call_then_its_outputs_do_not_touch_those_of_the_first():
    program, segment = one_segment()
    program.store_output(segment, 0, Mode.FINAL, 1)
    engine = executor(program)
    (first,) = engine.run([torch.ones(2)], 1)
    (second,) = engine.run([torch.zeros(2)], 1)
    assert (first.tolist(), second.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_output_that_is_not_contiguous_then_values_are_right():
    program, segment = one_segment(num_micro_batches=2)
    add(program, segment, "t", [Reg(0)], [1])
    program.store_output(segment, 1, Mode.ALL, 1)
    x = torch.arange(12.0).reshape(4, 3)
    (result,) = executor(program).run([x], 1)
    assert torch.equal(result, torch.cat([x[:2].T, x[2:].T]))


def test_worked_example_of_two_steps_three_accumulations_two_replicas():
    program, segment = one_segment(num_micro_batches=3)
    program.store_output(segment, 0, Mode.ALL, 1)
    program.store_output(segment, 0, Mode.FINAL, 1)
    add(program, segment, "mean", [Reg(0)], [1])
    program.store_output(segment, 1, Mode.SUM, 1)
    x = torch.arange(24.0 * 10).reshape(24, 10)
    everything, final, losses = executor(program, replicas=2).run([x], 2)
    assert torch.equal(everything, x)
    assert torch.equal(final, x[-4:])  # The last micro-batch of replica 0, then of replica 1.
    of_replica = x.reshape(6, 2, 2, 10).mean(dim=(2, 3)).sum(0)
    torch.testing.assert_close(losses, of_replica)


@pytest.mark.parametrize("period", [0, -1], ids=["zero", "negative"])
def test_period_below_one_then_validate_refuses_it(period):
    program, segment = one_segment()
    program.store_output(segment, 0, Mode.EVERY_N, period)
    with pytest.raises(Exception, match="period"):
        program.validate()


@pytest.mark.parametrize(
    ("mode", "expected"), [(Mode.ALL, [1.0, 1.0, 1.0]), (Mode.FINAL, [1.0]), (Mode.SUM, [3.0])]
)
def test_output_of_a_window_segment_then_has_one_value_a_window(mode, expected):
    program = _C.Program()
    segment = program.add_segment("update", 0, _C.SegmentKind.WINDOW)
    program.load_constant(segment, 0, program.add_constant(torch.ones(1)))
    program.store_output(segment, 0, mode, 1)
    program.set_schedule([[(segment, 0)]], 2)
    (result,) = executor(program).run([], 3)
    assert result.tolist() == expected

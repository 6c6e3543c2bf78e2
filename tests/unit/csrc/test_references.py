"""Lanes with their own tensors in the memory of shared ones: contents and lifetimes."""

import sys

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C

N = 8


def product_of_all(constant):
    """Returns a program for y = x * w * constant in each micro-batch; an update replaces w."""
    program = _C.Program()
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    weight = program.add_variable("weight", list(constant.shape), constant.dtype, False)
    program.load_input(segment, 0, program.add_input("x", True))
    program.load_variable(segment, 1, weight)
    program.load_constant(segment, 2, program.add_constant(constant))
    add(program, segment, "mul.Tensor", [Reg(0), Reg(1)], [3])
    add(program, segment, "mul.Tensor", [Reg(3), Reg(2)], [4])
    program.store_output(segment, 4, ALL, 1)
    program.load_variable(update, 1, weight)
    add(program, update, "mul.Tensor", [Reg(1), 2.0], [2])
    program.store_variable(update, 2, weight)
    program.set_schedule([[*((segment, m) for m in range(N)), (update, 0)]], N)
    return program


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_weight_replaced_after_each_window_then_every_worker_sees_the_new_one(workers, dtype):
    constant = torch.randn(3, dtype=dtype)
    engine = executor(product_of_all(constant), workers=workers)
    weight = torch.randn(3, dtype=dtype)
    engine.write_variable(0, 0, weight)
    for call in range(5):
        x = torch.randn(4 * N, 3, dtype=dtype)
        (out,) = engine.run([x], 4)
        factors = torch.tensor([2.0 ** (4 * call + w) for w in range(4)]).repeat_interleave(N)
        torch.testing.assert_close(out, x * factors[:, None] * weight * constant)
        engine.write_variable(0, 0, weight * 2.0 ** (4 * call + 4))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_conjugate", [True, False])
def test_tensors_that_are_views_of_conjugates_then_are_read_as_such(workers, is_conjugate):
    def seen(tensor):
        return tensor.conj() if is_conjugate else tensor

    constant, x = (torch.randn(*shape, dtype=torch.complex64) for shape in ((3,), (N, 3)))
    engine = executor(product_of_all(seen(constant)), workers=workers)
    engine.write_variable(0, 0, torch.ones(3, dtype=torch.complex64))
    for _ in range(10):
        (out,) = engine.run([seen(x)], 1)
        engine.write_variable(0, 0, torch.ones(3, dtype=torch.complex64))
        torch.testing.assert_close(out, seen(x) * seen(constant))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_input_when_the_call_is_over_then_nobody_holds_it(workers):
    engine = executor(product_of_all(torch.ones(3)), workers=workers)
    engine.write_variable(0, 0, torch.ones(3))
    for _ in range(20):
        x = torch.randn(N, 3)
        num_references = sys.getrefcount(x)
        engine.run([x], 1)
        assert sys.getrefcount(x) == num_references
        assert x._use_count() == 1
        assert torch._C._storage_Use_Count(x.untyped_storage()._cdata) <= 2

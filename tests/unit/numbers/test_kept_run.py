"""Runs on disk during a comparison: values return with the same bits, in any order of reading."""

import pytest
import torch

from poptorch_emu.numbers.kept_run import KeptRun
from poptorch_emu.numbers.run import FIRST, given

DTYPES = [
    torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def test_values_of_any_type_and_layout_then_come_back_bit_by_bit():
    tensors = [(torch.randn(3, 4) * 50).to(dtype) for dtype in DTYPES]
    tensors += [torch.tensor(3.0), torch.empty(0, 4), torch.tensor([torch.nan, -0.0, torch.inf])]
    tensors += [torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)[:, 1:]]
    with KeptRun("a run") as run:
        for tensor in tensors:
            run.add(run.declare(given("x", tensor)), FIRST, tensor)
        # The values are read in another order than they were written.
        for number in reversed(range(len(tensors))):
            found, tensor = run.read(number, FIRST), tensors[number]
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert bytes_of(found) == bytes_of(tensor)


def test_value_when_it_is_changed_afterwards_then_the_run_has_the_old_one():
    tensor = torch.ones(3)
    with KeptRun("a run") as run:
        run.add(run.declare(given("x", tensor)), FIRST, tensor)
        tensor.zero_()
        run.read(0, FIRST).fill_(2)
        assert run.read(0, FIRST).tolist() == [1, 1, 1]


def test_places_then_are_those_of_all_values_in_order():
    with KeptRun("a run") as run:
        first, second = (run.declare(given(name, torch.ones(1))) for name in "ab")
        for index, position in ((first, (1, 0)), (second, (0, 1)), (first, (0, 0))):
            run.add(index, position, torch.tensor([10.0 * position[0] + position[1]]))
        assert run.positions == ((0, 0), (0, 1), (1, 0))
        assert run.read(first, (1, 0)).item() == 10 and run.read(second, (0, 1)).item() == 1
        assert run.read(second, (1, 0)) is None


def test_type_and_shape_then_are_those_of_the_first_value():
    with KeptRun("a run") as run:
        run.add(run.declare(given("x", torch.ones(1))), FIRST, torch.ones(2, 3).half())
        (value,) = run.values
    assert (value.dtype, value.shape) == (torch.float16, (2, 3))


def test_run_when_its_context_ends_then_its_file_is_closed():
    with KeptRun("a run") as run:
        run.add(run.declare(given("x", torch.ones(1))), FIRST, torch.ones(1))
    with pytest.raises(ValueError, match="closed"):
        run.read(0, FIRST)

"""The bytes of a tensor: those that NumPy finds, whatever the strides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poptorch_emu.distributed.agreement import digest_of
from poptorch_emu.numbers.kept_run import KeptRun
from poptorch_emu.numbers.run import FIRST, given
from poptorch_emu.numbers.run_file import RunWriter, opened
from poptorch_emu.tensor_bytes import bytes_of

SOURCE = torch.arange(3, 15)
DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
# Name -> shape, strides, index of the first element.
LAYOUTS = {
    "expanded": ((1,), (0,), 0),
    "expanded twice": ((1, 1), (0, 0), 2),
    "one of many": ((1,), (5,), 4),
    "odd strides": ((1, 1), (3, 7), 1),
    "scalar": ((), (), 3),
    "row": ((1, 3), (7, 1), 2),
    "column": ((3, 1), (1, 9), 2),
    "every third": ((3,), (3,), 1),
    "transposed": ((3, 4), (1, 3), 0),
    "repeated": ((2, 3), (0, 1), 0),
    "empty": ((0,), (5,), 0),
    "empty rows": ((2, 0), (3, 5), 0),
}


@pytest.fixture(params=LAYOUTS.values(), ids=list(LAYOUTS))
def strided(request: pytest.FixtureRequest) -> torch.Tensor:
    return SOURCE.as_strided(*request.param)


def typed(strided: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of another type with the same shape, strides and first element."""
    first = strided.storage_offset()
    return SOURCE.to(dtype).as_strided(strided.shape, strided.stride(), first)


def expected(strided: torch.Tensor, dtype: torch.dtype) -> bytes:
    """Returns the bytes by way of NumPy, one element after another."""
    numbers = [SOURCE.to(dtype)[number - 3 : number - 2] for number in np.ravel(strided.numpy())]
    return b"".join(bytes(number.view(torch.uint8).tolist()) for number in numbers)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_then_are_those_of_the_elements_in_order(
    strided: torch.Tensor, dtype: torch.dtype
) -> None:
    found = bytes_of(typed(strided, dtype))
    assert (found.dtype, found.dim()) == (torch.uint8, 1)
    assert found.numpy().tobytes() == expected(strided, dtype)


def test_bytes_of_a_parameter_or_of_an_unresolved_view_then_are_those_of_its_values() -> None:
    number = torch.tensor([1 + 2j])
    parameter = torch.nn.Parameter(torch.tensor(2.0).expand(1))
    for tensor, value in (
        (parameter, np.float32([2])),
        (number.conj(), np.complex64([1 - 2j])),
        (number.conj().imag, np.float32([-2])),
    ):
        assert bytes_of(tensor).numpy().tobytes() == value.tobytes()


def test_bytes_of_a_contiguous_tensor_then_share_its_memory() -> None:
    tensor = torch.ones(2, 3)
    bytes_of(tensor).zero_()
    assert tensor.eq(0).all()


def test_digest_of_processes_then_depends_on_shape_and_values_alone(strided: torch.Tensor) -> None:
    assert digest_of(typed(strided, torch.float32)) == digest_of(strided.float().clone())


def test_recorded_value_then_comes_back(strided: torch.Tensor, tmp_path) -> None:
    value = typed(strided, torch.float32)
    with KeptRun("a run") as run:
        run.add(run.declare(given("x", value)), FIRST, value)
        assert torch.equal(run.read(0, FIRST), strided.float())
    with RunWriter(tmp_path / "run") as writer:
        writer.add(writer.declare(given("x", value)), FIRST, value)
    with opened(tmp_path / "run") as stored:
        assert torch.equal(stored.read(0, FIRST), strided.float())

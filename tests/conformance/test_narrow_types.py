"""Types that the device does not have, and narrow integers (semantics §7.1, api §22)."""

from __future__ import annotations

import logging

import pytest
import torch
from support.small_models import Function, options, run
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Numeric types", fidelity="exact")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="poptorch:cpp")
    return caplog


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool], ids=str
)
def test_narrow_integer_when_passed_through_then_keeps_its_type(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]]).to(dtype)
    result = run(lambda x: (x.reshape(4, 2).t(), x.float() * 2), x)
    torch.testing.assert_close(result[0], x.reshape(4, 2).t(), rtol=0, atol=0)
    torch.testing.assert_close(result[1], x.float() * 2)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_narrow_integer_when_computed_then_wraps_like_pytorch(dtype: torch.dtype) -> None:
    x = torch.tensor([100, 50, 7], dtype=dtype)
    result = run(lambda x: (x + x, x * 2, (x > 20), x.sum()), x)
    expected = (x + x, x * 2, (x > 20), x.sum().to(torch.int32))
    for value, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_wide_type_when_given_then_output_is_narrow(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3], dtype=dtype)
    result = run(lambda x: x + 1, x)
    assert result.dtype is {torch.float64: torch.float32, torch.int64: torch.int32}[dtype]
    torch.testing.assert_close(result, (x + 1).to(result.dtype))


def test_float64_when_asked_for_inside_then_is_float32_with_a_warning_a_line(
    log: pytest.LogCaptureFixture,
) -> None:
    def forward(x: torch.Tensor):
        for _ in range(3):
            y = x.double() * 2
        assert y.dtype is torch.float32
        return y, torch.zeros(2, dtype=torch.float64, device="ipu") + x

    first, second = run(forward, torch.tensor([1.5, 2.5]))
    assert first.tolist() == [3.0, 5.0] and second.dtype is torch.float32
    records = [r for r in log.records if "Type coerced from Double to Float" in r.message]
    assert len(records) == 2 and {record.name for record in records} == {"poptorch:cpp"}
    messages = [record.message for record in records]
    assert "for tensor id 1" in messages[0] and "test_narrow_types.py" in messages[0]


def test_float64_input_when_given_then_is_converted_silently(log: pytest.LogCaptureFixture) -> None:
    run(lambda x: x * 2, torch.tensor([1.0], dtype=torch.float64))
    assert "coerced" not in log.text


def test_float64_constant_when_out_of_range_then_is_infinite(log: pytest.LogCaptureFixture) -> None:
    constant = torch.tensor([1e300, 2.0], dtype=torch.float64)
    assert run(lambda x: x * constant.to("ipu"), torch.ones(2)).tolist() == [float("inf"), 2.0]
    assert "torch.float64 constant cannot be represented as a torch.float32" in log.text


@pytest.mark.parametrize(
    ("value", "expected", "level", "message"),
    [
        (2**31, -(2**31), logging.WARNING, "torch.int64 constant cannot be represented"),
        (2**63 - 1, 2**31 - 1, logging.INFO, "The largest torch.int64"),
        (2**31 - 1, 2**31 - 1, None, ""),
        (-(2**31), -(2**31), None, ""),
    ],
)
def test_int64_constant_when_given_then_fits_int32(
    value: int, expected: int, level: int | None, message: str, log: pytest.LogCaptureFixture
) -> None:
    constant = torch.tensor([value])
    result = run(lambda x: x.to(torch.int64) * 0 + constant.to("ipu"), torch.ones(1))
    assert result.tolist() == [expected]
    levels = [record.levelno for record in log.records if "torch.int64" in record.message]
    assert levels == ([level] if level else [])
    assert message in log.text


def test_integer_buffer_when_used_then_is_a_constant_with_a_warning(
    log: pytest.LogCaptureFixture,
) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("offset", torch.tensor([3, 4]))
            self.register_buffer("unused", torch.tensor([5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.offset

    module = Shifted()
    model = poptorch.inferenceModel(module, options())
    assert model(torch.zeros(2)).tolist() == [3.0, 4.0]
    assert "Parameter offset" in log.text and "was downgraded to constant because" in log.text
    assert "unused" not in log.text
    module.offset.fill_(9)
    assert model(torch.zeros(2)).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_input_when_of_an_unsupported_type_then_raises(dtype: torch.dtype) -> None:
    with pytest.raises(poptorch.Error, match="Unsupported tensor input type from pytorch"):
        run(lambda x: x.float(), torch.ones(2).to(dtype))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.bfloat16().float(), "Unsupported scalar type `BFloat16'.*cast to `Half'"),
        (
            lambda x: x + torch.ones(2, dtype=torch.bfloat16).to("ipu"),
            "Unsupported scalar type `BFloat16'",
        ),
        (lambda x: x.to(torch.float8_e5m2).float(), "`Float8_e5m2'.*cast to `Half'"),
    ],
    ids=["bfloat16", "constant", "float8"],
)
def test_type_when_unsupported_inside_then_raises(function, message: str) -> None:
    constant_model = Function(function)
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(constant_model, options())(torch.ones(2))


def test_scalars_when_beside_tensors_then_promote_like_pytorch() -> None:
    x, n = torch.tensor([1.5]).half(), torch.tensor([3], dtype=torch.int32)
    result = run(lambda x, n: (x * 2.5, n * 2, n * 0.5, n / 2, x + n), x, n)
    for value, expected in zip(result, (x * 2.5, n * 2, n * 0.5, n / 2, x + n), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=0)

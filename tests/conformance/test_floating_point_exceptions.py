"""`Options.Precision.enableFloatingPointExceptions` (semantics §7.3, api §8.1)."""

from __future__ import annotations

import pytest
import torch
from support.small_models import Function, options, run, trained

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Floating-point exceptions", fidelity="exact")

_INF = float("inf")
_FAULTS = {
    "inf minus inf": (lambda x: x - x, [_INF]),
    "division by zero": (lambda x: 1 / x, [0.0]),
    "zero by zero": (lambda x: x / x, [0.0]),
    "inf times zero": (lambda x: x * 0.0, [_INF]),
    "root of -1": (lambda x: x.sqrt(), [-1.0]),
    "logarithm of 0": (lambda x: x.log(), [0.0]),
    "overflow": (lambda x: x * x, [1e30]),
    "overflow of a cast": (lambda x: x.half(), [1e5]),
    "comparison with NaN": (lambda x: (x > 0).float(), [float("nan")]),
    "sum": (lambda x: x.sum(), [_INF, -_INF]),
}


def checked(*, is_on: bool = True) -> poptorch.Options:
    result = options()
    result.Precision.enableFloatingPointExceptions(is_on)
    return result


@pytest.mark.parametrize("name", _FAULTS)
def test_operation_when_it_faults_then_error_names_it(name: str) -> None:
    function, values = _FAULTS[name]
    with pytest.raises(poptorch.Error, match="floating-point exception") as info:
        run(function, torch.tensor(values), opts=checked())
    text = str(info.value)
    assert "Exception while executing node" in text
    assert "micro-batch 0" in text and "test_floating_point_exceptions.py" in text


@pytest.mark.parametrize("name", _FAULTS)
def test_operation_when_not_checked_then_runs_on(name: str) -> None:
    function, values = _FAULTS[name]
    x = torch.tensor(values)
    torch.testing.assert_close(
        run(function, x, opts=checked(is_on=False)), function(x), equal_nan=True
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.masked_fill(x > 0, -_INF).softmax(-1),
        lambda x: torch.full_like(x, _INF).minimum(x),
        lambda x: torch.where(x > 0, x, -_INF).amax(-1),
        lambda x: torch.exp(x - 200),
        lambda x: x + _INF,
    ],
    ids=["mask", "fill", "where", "underflow", "infinite operand"],
)
def test_infinity_when_it_was_given_then_is_no_fault(function) -> None:
    x = torch.tensor([[-1.0, 2.0, 3.0]])
    torch.testing.assert_close(run(function, x, opts=checked()), function(x), equal_nan=True)


def test_training_when_backward_faults_then_error_names_the_forward_line() -> None:
    # The root has an infinite slope at 0, and its value is finite.
    with pytest.raises(poptorch.Error, match="floating-point exception.*infinity") as info:
        trained(
            lambda x, w: poptorch.identity_loss((w * x).sqrt(), "sum"),
            [torch.zeros(2)],
            [(torch.ones(2),)],
            opts=checked(),
        )
    assert "backward" in str(info.value) and "test_floating_point_exceptions" in str(info.value)


def test_training_when_a_half_accumulator_overflows_then_error_names_the_weight() -> None:
    opts = options(accumulation=2)
    opts.Precision.enableFloatingPointExceptions(True)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    with pytest.raises(poptorch.Error, match="floating-point exception.*'weights.0'"):
        trained(
            lambda x, w: poptorch.identity_loss(w * x, "sum"),
            [torch.zeros(1)],
            [(torch.tensor([40000.0, 40000.0]),)],
            optimizer=lambda p: poptorch.optim.SGD(p, lr=0.1, accum_type=torch.float16),
            opts=opts,
        )


def test_model_when_it_faulted_then_next_call_runs() -> None:
    model = poptorch.inferenceModel(Function(lambda x: 1 / x), checked())
    with pytest.raises(poptorch.Error, match="floating-point exception"):
        model(torch.tensor([0.0]))
    assert model(torch.tensor([4.0])).item() == 0.25


def test_option_when_not_a_bool_then_raises() -> None:
    with pytest.raises(AssertionError, match="needs to be set to a bool"):
        poptorch.Options().Precision.enableFloatingPointExceptions(1)

"""Every way to call a factory without a device (semantics.md 12.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.small_models import run

pytestmark = pytest.mark.feature("Tensor factories", fidelity="exact")

X = torch.rand(2, 3)

_KNOWN: dict[str, Callable] = {
    "zeros of numbers": lambda x: torch.zeros(2, 3),
    "zeros by name": lambda x: torch.zeros(size=(2, 3), dtype=torch.int32),
    "zeros into": lambda x: torch.zeros(2, 3, out=x * 2),
    "ones into": lambda x: torch.ones((2, 3), out=x * 2),
    "full by name": lambda x: torch.full(size=(2, 3), fill_value=4.0),
    "full into": lambda x: torch.full((2, 3), 4.0, out=x * 2),
    "arange end": lambda x: torch.arange(end=3),
    "arange start": lambda x: torch.arange(1, 3),
    "arange step": lambda x: torch.arange(1.0, 3.0, 0.5),
    "arange into": lambda x: torch.arange(6.0, out=x.flatten()),
    "linspace": lambda x: torch.linspace(0, 1, steps=6),
    "linspace of tensors": lambda x: torch.linspace(x[0, 0], x[1, 1], 6),
    "linspace of a tensor and a number": lambda x: torch.linspace(x[0, 0], 1, 6),
    "linspace into": lambda x: torch.linspace(0, 1, 6, out=x.flatten()),
    "logspace": lambda x: torch.logspace(0, 1, 6, base=2.0),
    "logspace of tensors": lambda x: torch.logspace(0, x[0, 0], 6),
    "eye": lambda x: torch.eye(2, 3),
    "eye into": lambda x: torch.eye(2, 3, out=x * 2),
    "tril_indices": lambda x: torch.tril_indices(3, 3, offset=-1),
    "triu_indices": lambda x: torch.triu_indices(row=3, col=3),
    "scalar_tensor": lambda x: torch.scalar_tensor(2.0),
    "zeros_like by name": lambda x: torch.zeros_like(input=x),
    "full_like by name": lambda x: torch.full_like(input=x, fill_value=2),
    "tensor by name": lambda x: torch.tensor(data=[1.0, 2.0]),
}
_RANDOM: dict[str, Callable] = {
    "rand": lambda x: torch.rand(2, 3),
    "rand by name": lambda x: torch.rand(size=(2, 3)),
    "rand into": lambda x: torch.rand(2, 3, out=x * 2),
    "randn into": lambda x: torch.randn((2, 3), out=x * 2),
    "randint high": lambda x: torch.randint(5, (2, 3)),
    "randint low": lambda x: torch.randint(low=2, high=5, size=(2, 3)),
    "randint into": lambda x: torch.randint(5, (2, 3), out=x.long()),
    "randperm": lambda x: torch.randperm(n=5),
    "randperm into": lambda x: torch.randperm(6, out=x.flatten().long()),
    "normal of numbers": lambda x: torch.normal(0.0, 1.0, (2, 3)),
    "normal of numbers by name": lambda x: torch.normal(mean=0.0, std=1.0, size=(2, 3)),
    "normal of a mean": lambda x: torch.normal(x),
    "normal of a mean by name": lambda x: torch.normal(mean=x, std=2.0),
    "normal of a deviation": lambda x: torch.normal(0.5, x),
    "normal of a deviation by name": lambda x: torch.normal(mean=0.5, std=x),
    "normal of both": lambda x: torch.normal(x, x),
    "normal of both by name": lambda x: torch.normal(mean=x, std=x),
    "normal into": lambda x: torch.normal(x, 1.0, out=x * 2),
    "empty": lambda x: torch.empty(2, 3),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (3, 1)),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)),
}


@pytest.mark.parametrize("name", _KNOWN)
def test_factory_when_called_without_a_device_then_equals_pytorch(name: str) -> None:
    result, expected = run(_KNOWN[name], X), _KNOWN[name](X)
    wanted = expected.int() if expected.dtype is torch.int64 else expected
    torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("name", _RANDOM)
def test_random_factory_when_called_without_a_device_then_type_and_shape_are_pytorchs(
    name: str,
) -> None:
    devices = []

    def function(x: torch.Tensor) -> torch.Tensor:
        value = _RANDOM[name](x)
        devices.append(value.device.type)
        return value

    result, expected = run(function, X), _RANDOM[name](X)
    assert devices == ["ipu"]
    assert result.shape == expected.shape
    assert result.dtype == (torch.int32 if expected.dtype is torch.int64 else expected.dtype)


def test_normal_when_deviations_are_tensors_then_numbers_have_them() -> None:
    means, deviations = torch.tensor([[0.0], [100.0]]), torch.tensor([[1.0], [10.0]])

    def function(means: torch.Tensor, deviations: torch.Tensor) -> torch.Tensor:
        return torch.normal(mean=means.expand(2, 10_000), std=deviations.expand(2, 10_000))

    result = run(function, means, deviations)
    # The tolerances are five standard errors of the mean and of the deviation of 10,000 numbers.
    assert torch.all((result.mean(1) - means[:, 0]).abs() < deviations[:, 0] * 0.05)
    assert torch.all((result.std(1) / deviations[:, 0] - 1).abs() < 0.04)

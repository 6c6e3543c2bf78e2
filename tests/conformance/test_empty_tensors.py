"""Tensors without elements, by PyTorch's rules (semantics.md 12.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.small_models import run

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Tensors without elements", fidelity="exact")

# Calls that PyTorch refuses, some of them only when the model runs.
_REFUSED: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 1, 0, 3)),
    "nearest 1d": (lambda x: F.interpolate(x, size=4), (1, 2, 0)),
    "nearest exact": (lambda x: F.interpolate(x, size=4, mode="nearest-exact"), (1, 2, 0)),
    "linear": (lambda x: F.interpolate(x, size=4, mode="linear"), (1, 2, 0)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1, 0, 3)),
    "pooling": (lambda x: F.max_pool2d(x, 2), (1, 1, 0, 3)),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_empty_input_when_pytorch_refuses_it_then_the_error_says_what_pytorchs_says(
    name: str,
) -> None:
    function, shape = _REFUSED[name]
    with pytest.raises(RuntimeError) as expected:
        function(torch.zeros(shape))
    with pytest.raises((RuntimeError, poptorch.Error)) as error:
        run(function, torch.zeros(shape))
    assert str(expected.value).split(",")[0].split(":")[0] in str(error.value)


@pytest.mark.parametrize("shape", [(0, 1, 2, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_batch_when_without_rows_then_is_interpolated_like_others(mode: str, shape) -> None:
    x = torch.randn(shape)
    result = run(lambda x: F.interpolate(x, scale_factor=2, mode=mode), x)
    torch.testing.assert_close(result, F.interpolate(x, scale_factor=2, mode=mode))

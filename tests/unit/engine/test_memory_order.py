"""Assumptions about memory order hold for PyTorch's kernels, on a sample of its databases."""

from __future__ import annotations

import pytest
import torch
from opinfo.cases import names
from opinfo.memory_order import Compared, faults_of

aten = torch.ops.aten

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns about deprecated operators.

_IMAGES = torch.randn(2, 8, 6, 5)
# Operators whose samples in the database are not images, or whose kernels assume an order.
_OPERATORS = {
    "roll": lambda: _IMAGES.roll((1, 2), (1, 3)),
    "roll of one dimension": lambda: _IMAGES.roll(1, 1),
    "channel shuffle": lambda: torch.channel_shuffle(_IMAGES, 4),
    "pixel shuffle": lambda: torch.pixel_shuffle(_IMAGES, 2),
    "pixel unshuffle": lambda: torch.pixel_unshuffle(_IMAGES[..., :4], 2),
    "unpooling": lambda: torch.nn.functional.max_unpool2d(
        *torch.nn.functional.max_pool2d(_IMAGES[..., :4], 2, return_indices=True), 2
    ),
    "interpolation": lambda: torch.nn.functional.interpolate(_IMAGES, scale_factor=2),
    "reflection": lambda: torch.nn.functional.pad(_IMAGES, (1, 2, 1, 1), "reflect"),
    "index": lambda: _IMAGES[:, [2, 0, 1]],
    "gather": lambda: _IMAGES.gather(1, torch.zeros(2, 3, 6, 5, dtype=torch.int64)),
    "softmax": lambda: _IMAGES.softmax(1),
    "sort": lambda: _IMAGES.sort(1),
    "sums": lambda: _IMAGES.cumsum(2),
    "flip": lambda: _IMAGES.flip(1, 2),
    "batch norm": lambda: aten.native_batch_norm(_IMAGES, None, None, None, None, True, 0.1, 1e-5),
    "batch norm of an export": lambda: aten._native_batch_norm_legit.no_stats(
        _IMAGES, None, None, True, 0.1, 1e-5
    ),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[_IMAGES] * 3),
}
_CONVOLUTIONS = [
    (dims, transposed, groups, dilation, batch)
    for dims in (1, 2, 3)
    for transposed in (False, True)
    for groups, dilation, batch in ((1, 1, 2), (4, 2, 1))
]


@pytest.mark.parametrize("name", names((3, 120)))
def test_strides_and_values_of_operators_when_arguments_are_permuted_then_are_as_assumed(
    name: str,
) -> None:
    assert faults_of(name, Compared(), limit=2) == []


@pytest.mark.parametrize("name", _OPERATORS)
def test_strides_and_values_of_images_when_permuted_then_are_as_assumed(name: str) -> None:
    compared = Compared()
    with compared:
        _OPERATORS[name]()
    assert compared.faults == []


@pytest.mark.parametrize(("dims", "transposed", "groups", "dilation", "batch"), _CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_strides_of_a_convolution_when_images_or_weights_are_permuted_then_are_the_kernel_s(
    dims: int, transposed: bool, groups: int, dilation: int, batch: int, dtype: torch.dtype
) -> None:
    images = torch.randn(batch, 4, *[7] * dims, dtype=dtype)
    weight = torch.randn(4, 4 // groups, *[3] * dims, dtype=dtype)
    bias = torch.randn(4, dtype=dtype)
    how = ([1] * dims, [1] * dims, [dilation] * dims, transposed, [0] * dims, groups)
    compared = Compared()
    with compared:
        result = aten.convolution.default(images, weight, bias, *how)
        mask = [True, True, True]
        aten.convolution_backward.default(result, images, weight, [4], *how, mask)
    assert compared.faults == []

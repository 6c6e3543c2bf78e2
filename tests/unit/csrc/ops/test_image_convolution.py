"""Gradients of channels-last convolutions: PyTorch's numbers, and no write beyond them."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys

import pytest
import torch

import poptorch_emu  # noqa: F401  (the operator is its own)

ours = torch.ops.poptorch_emu.image_convolution_backward
# Copies an image to the strides of the engine's images.
last = torch.ops.poptorch_emu.channels_last


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1), (2,)])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "mask", [(True, True, True), (True, True, False), (False, True, False), (True, False, True)]
)
def test_gradients_then_are_those_of_pytorch(stride, kernel, padding, groups, mask) -> None:
    torch.manual_seed(0)
    x = last(torch.randn(3, 4, 9, 8))
    weight = last(torch.randn(6, 4 // groups, kernel, kernel))
    settings = [stride, [padding] * 2, [1, 1], False, [0, 0], groups]
    gradient = torch.randn_like(torch.convolution(x, weight, None, *settings))
    exact = torch.ops.aten.convolution_backward(
        *(gradient.double().contiguous(), x.double().contiguous(), weight.double().contiguous()),
        *([6], *settings, mask),
    )
    results = ours(gradient, x, weight, [6], *settings, mask)
    for result, expected, is_wanted in zip(results, exact, mask, strict=True):
        if is_wanted:
            torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-4)


CHILD = """
import torch
import poptorch_emu

last = torch.ops.poptorch_emu.channels_last
for inputs, outputs in ((3, 4), (4, 8), (4, 64)):
    x, weight = last(torch.randn(4, inputs, 32, 32)), last(torch.randn(outputs, inputs, 1, 1))
    settings = [[2, 2], [0, 0], [1, 1], False, [0, 0], 1]
    gradient = torch.randn_like(torch.convolution(x, weight, None, *settings))
    for _ in range(3):
        for mask in ([True, True, False], [True, True, True], [False, False, True]):
            torch.ops.poptorch_emu.image_convolution_backward(
                gradient, x, weight, [outputs], *settings, mask
            )
print("whole")
"""


@pytest.mark.skipif(
    ctypes.util.find_library("c_malloc_debug") is None, reason="no C library that checks its heap"
)
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer has the heap")
def test_gradient_of_the_weight_when_pixels_are_skipped_then_memory_stays_whole() -> None:
    """The C library checks the bytes behind each block when the block is freed."""
    checked = {"MALLOC_CHECK_": "3", "LD_PRELOAD": "libc_malloc_debug.so.0"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **checked},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "whole\n", done.stderr

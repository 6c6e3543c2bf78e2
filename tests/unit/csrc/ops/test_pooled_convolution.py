"""A convolution fused with the pooling after it: the numbers of PyTorch, including NaN."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.processors import needs_onednn, needs_vectors
from torch.nn import functional as F

from poptorch_emu import _C

pytestmark = needs_onednn
pooled_convolution = torch.ops.poptorch_emu.pooled_convolution

# `steps`: (stride, padding, dilation) of a convolution. `windows`: (size, stride, padding,
# dilation) of a pooling.
steps = st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))
windows = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2))


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(x, weight, bias, step, window, ceil_mode, has_relu):
    """Returns the result of PyTorch's functions, in float64."""
    bias = None if bias is None else bias.double()
    y = F.conv2d(x.double(), weight.double(), bias, *step)
    y = F.max_pool2d(y, *window, ceil_mode=ceil_mode)
    return torch.relu(y) if has_relu else y


def ours(x, weight, bias, step, window, ceil_mode, has_relu, is_direct):
    pairs = ([value, value] for value in (*step, *window))
    return pooled_convolution(x, weight, bias, *pairs, ceil_mode, has_relu, is_direct)


# Whether our own kernel computes a convolution, or oneDNN.
kernels = pytest.mark.parametrize("is_direct", [False, pytest.param(True, marks=needs_vectors)])


@kernels
@settings(max_examples=150, deadline=None)
@given(
    images=st.integers(1, 5),
    channels=st.tuples(
        st.sampled_from([1, 3, 10, 15, 16, 20]), st.sampled_from([1, 6, 10, 15, 16, 17, 20, 32, 40])
    ),
    size=st.tuples(st.integers(3, 14), st.integers(3, 20)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    step=steps,
    window=windows,
    ceil_mode=st.booleans(),
    has_relu=st.booleans(),
    has_bias=st.booleans(),
)
def test_pooled_convolution_then_has_the_numbers_of_pytorch(
    images, channels, size, kernel, step, window, ceil_mode, has_relu, has_bias, is_direct
):
    assume(window[2] <= window[0] // 2)
    if is_direct:
        step = (1, *step[1:])
    x, weight = numbers(images, channels[0], *size), numbers(*channels[::-1], *kernel, seed=1)
    bias = numbers(channels[1], seed=2) if has_bias else None
    try:
        wanted = expected(x, weight, bias, step, window, ceil_mode, has_relu)
    except RuntimeError:  # The kernel is larger than the images.
        assume(False)
    result = ours(x, weight, bias, step, window, ceil_mode, has_relu, is_direct)
    assert result.is_contiguous() and result.dtype is torch.float32
    depth = weight[0].numel()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=2e-6 * depth**0.5)


@kernels
@pytest.mark.parametrize("has_relu", [False, True])
def test_nan_then_is_there_as_in_pytorch(has_relu, is_direct):
    x = numbers(3, 2, 12, 12)
    x[1, 0, 5, 7] = torch.nan
    case = numbers(20, 2, 3, 3), None, (1, 0, 1), (2, 2, 0, 1), False, has_relu
    result, wanted = ours(x, *case, is_direct), expected(x, *case)
    assert 0 < wanted.isnan().sum() < wanted.numel()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@kernels
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_then_do_not_depend_on_threads_or_on_other_images(threads, is_direct):
    """There are more images than are computed at once."""
    case = numbers(20, 3, 5, 5), numbers(20), (1, 2, 1), (2, 2, 0, 1), False, True, is_direct
    x = numbers(50, 3, 40, 40)
    before = torch.get_num_threads()
    alone = torch.cat([ours(image[None], *case) for image in x])
    torch.set_num_threads(threads)
    try:
        assert torch.equal(ours(x, *case), alone)
    finally:
        torch.set_num_threads(before)


@kernels
def test_images_in_any_layout_then_have_the_same_numbers(is_direct):
    case = numbers(10, 3, 3, 3), None, (1, 1, 1), (2, 2, 0, 1), False, True, is_direct
    x = numbers(4, 3, 10, 10)
    wanted = ours(x, *case)
    assert torch.equal(ours(x.contiguous(memory_format=torch.channels_last), *case), wanted)
    assert torch.equal(ours(x.transpose(2, 3).contiguous().transpose(2, 3), *case), wanted)


def test_what_are_no_images_of_float32_then_is_refused():
    case = None, (1, 0, 1), (2, 2, 0, 1), False, True, False
    for x in (numbers(2, 3, 8, 8).double(), numbers(3, 8, 8), numbers(0, 3, 8, 8)):
        with pytest.raises(RuntimeError, match="takes images and a weight of float32, not"):
            ours(x, numbers(4, 3, 3, 3), *case)


@needs_vectors
def test_direct_kernel_refuses_strides():
    case = numbers(4, 3, 3, 3), None, (2, 0, 1), (2, 2, 0, 1), False, True
    with pytest.raises(RuntimeError, match=r"needs AVX2 and strides of 1, but got \[2, 2\]"):
        ours(numbers(2, 3, 9, 9), *case, is_direct=True)


@pytest.mark.slow
@pytest.mark.skipif(_C.vector_width() < 512, reason="there are no narrower blocks")
def test_where_onednn_writes_other_blocks_then_the_numbers_are_the_same():
    code = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    words = ["-q", "-p", "no:cacheprovider", __file__, "-k", "numbers_of_pytorch or nan or layout"]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""Max pooling of channels-last images: the numbers and indices of PyTorch, bit for bit."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import poptorch_emu  # noqa: F401

REFERENCE = torch.ops.aten.max_pool2d_with_indices
OURS = torch.ops.poptorch_emu.image_max_pool
OURS_WITH_INDICES = torch.ops.poptorch_emu.image_max_pool_with_indices
# Few different numbers, so that many are equal.
NUMBERS = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 1.0, 2.0, torch.inf])


def bits(x):
    return x.view(torch.int32)


def check_equality(x, *windows):
    maxima, indices = REFERENCE(x, *windows)
    ours, our_indices = OURS_WITH_INDICES(x, *windows)
    assert torch.equal(bits(ours), bits(maxima))
    assert torch.equal(bits(OURS(x, *windows)), bits(maxima))
    assert torch.equal(our_indices, indices)
    assert our_indices.dtype == indices.dtype
    assert all(
        each.is_contiguous(memory_format=torch.channels_last) for each in (ours, our_indices)
    )


@st.composite
def axes(draw):
    """Draws the size of an image and a window: (size, kernel, stride, padding, dilation)."""
    kernel = draw(st.integers(1, 5))
    return (
        draw(st.integers(1, 14)),
        kernel,
        draw(st.integers(1, 6)),
        draw(st.integers(0, kernel // 2)),
        draw(st.integers(1, 3)),
    )


@settings(max_examples=300)
@given(
    height=axes(),
    width=axes(),
    channels=st.sampled_from([1, 2, 7, 8, 10, 15, 16, 17, 31, 32, 35, 64]),
    ceil_mode=st.booleans(),
    nan_share=st.sampled_from([0.0, 0.02, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_maxima_and_indices_are_those_of_pytorch(
    height, width, channels, ceil_mode, nan_share, seed
):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, channels, height[0], width[0])
    x = NUMBERS[torch.randint(len(NUMBERS), shape, generator=generator)]
    x[torch.rand(shape, generator=generator) < nan_share] = torch.nan
    x = x.contiguous(memory_format=torch.channels_last)
    windows = [list(pair) for pair in zip(height[1:], width[1:], strict=True)]
    try:
        REFERENCE(x, *windows, ceil_mode)
    except RuntimeError:
        assume(False)
    for size, kernel, _, padding, dilation in (height, width):
        # For a window without any pixel, PyTorch returns an index outside of the image.
        assume(any(0 <= place * dilation - padding < size for place in range(kernel)))
    check_equality(x, *windows, ceil_mode)


@pytest.mark.parametrize("stride", [[], [2], [3, 1]], ids=str)
def test_stride_may_be_left_out_or_one_number(stride):
    x = torch.randn(2, 20, 9, 12).contiguous(memory_format=torch.channels_last)
    check_equality(x, [3, 2], stride)


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (1, 1, 2, 2), (3, 5, 6, 6)], ids=str)
def test_images_of_any_layout_are_taken(shape):
    check_equality(torch.randn(shape), 2)


def test_several_threads_give_the_same():
    x = torch.randn(8, 32, 64, 64).contiguous(memory_format=torch.channels_last)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check_equality(x, 3, 2, 1)
    finally:
        torch.set_num_threads(before)


def test_what_is_no_image_of_float32_is_an_error():
    message = "image_max_pool takes images of float32, not Half"
    with pytest.raises(RuntimeError, match=message):
        OURS(torch.ones(1, 2, 4, 4).half(), 2)
    with pytest.raises(RuntimeError, match="image_max_pool_with_indices takes images"):
        OURS_WITH_INDICES(torch.ones(2, 4, 4), 2)


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (([2], [2], [2]), "pad should be at most half"),
        (([9], [1]), "Output size is too small"),
        (([2], [0]), "stride should not be zero"),
    ],
)
def test_windows_that_pytorch_refuses_are_refused(windows, message):
    x = torch.ones(1, 2, 4, 4)
    for operator in (REFERENCE, OURS, OURS_WITH_INDICES):
        with pytest.raises(RuntimeError, match=message):
            operator(x, *windows)

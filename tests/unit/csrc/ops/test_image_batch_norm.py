"""Batch norm of channels-last images: as exact as PyTorch's for the other layout."""

import pytest
import torch

import poptorch_emu  # noqa: F401

FORWARD = torch.ops.aten._native_batch_norm_legit_functional
BACKWARD = torch.ops.aten.native_batch_norm_backward
OURS = torch.ops.poptorch_emu.image_batch_norm
OUR_BACKWARD = torch.ops.poptorch_emu.image_batch_norm_backward
MOMENTUM, EPS = 0.1, 1e-5
SHAPES = [(8, 32, 16, 16), (3, 5, 7, 9), (2, 1, 1, 1), (1, 3, 33, 31), (16, 130, 2, 3)]
ALL = [True, True, True]


def images_last(x):
    return torch.ops.poptorch_emu.channels_last(x)


def arguments(shape, *, is_affine=True, offset=5.0):
    """Returns an image whose mean is far from zero, and the other arguments of a batch norm."""
    torch.manual_seed(0)
    channels = shape[1]
    x = 3 * torch.randn(shape) + offset
    affine = (torch.rand(channels) + 0.5, torch.randn(channels)) if is_affine else (None, None)
    return x, *affine, torch.randn(channels), torch.rand(channels)


def in_double(values):
    return [None if value is None else value.double() for value in values]


def distances(results, exact):
    return [(r.double() - e).abs().max().item() for r, e in zip(results, exact, strict=True)]


@pytest.mark.parametrize("is_affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_is_as_near_to_double_precision_as_pytorchs(shape, is_affine):
    x, *others = arguments(shape, is_affine=is_affine)
    exact = FORWARD(*in_double([x, *others]), True, MOMENTUM, EPS)
    theirs = FORWARD(x, *others, True, MOMENTUM, EPS)
    ours = OURS(images_last(x), *others, True, MOMENTUM, EPS)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)
    limits = [4 * each + 1e-6 for each in distances(theirs, exact)]
    assert all(a <= b for a, b in zip(distances(ours, exact), limits, strict=True))


@pytest.mark.parametrize("is_affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_as_near_to_double_precision_as_pytorchs(shape, is_affine):
    x, weight, bias, *running = arguments(shape, is_affine=is_affine)
    dy = torch.randn(shape)

    def gradients(run, run_backward, convert):
        image, scale, shift, gradient, *stats = convert([x, weight, bias, dy, *running])
        _, mean, invstd, *_ = run(image, scale, shift, *stats, True, MOMENTUM, EPS)
        given = (gradient, image, scale, *stats, mean, invstd)
        return [each for each in run_backward(*given, True, EPS, ALL) if each is not None]

    exact = gradients(FORWARD, BACKWARD, in_double)
    theirs = gradients(FORWARD, BACKWARD, list)
    ours = gradients(OURS, OUR_BACKWARD, list)
    if not is_affine:  # PyTorch then returns the first gradient only.
        exact, theirs, ours = exact[:1], theirs[:1], ours[:1]
    limits = [4 * each + 1e-5 for each in distances(theirs, exact)]
    assert all(a <= b for a, b in zip(distances(ours, exact), limits, strict=True))


def test_gradients_that_nobody_wants_are_not_made():
    x, weight, bias, *running = arguments(SHAPES[1])
    _, mean, invstd, *_ = OURS(x, weight, bias, *running, True, MOMENTUM, EPS)
    mask = [False, True, False]
    results = OUR_BACKWARD(x, x, weight, *running, mean, invstd, True, EPS, mask)
    assert [each is not None for each in results] == mask


def test_bits_do_not_depend_on_the_number_of_threads():
    x, weight, bias, *running = arguments((16, 24, 40, 40))
    before, found = torch.get_num_threads(), []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        results = OURS(x, weight, bias, *running, True, MOMENTUM, EPS)
        stats = results[1:3]
        found.append([*results, *OUR_BACKWARD(x, x, weight, *running, *stats, True, EPS, ALL)])
    torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(others, found[0], strict=True))


@pytest.mark.parametrize(
    "x", [torch.ones(2, 3), torch.ones(0, 3, 2, 2), torch.ones(2, 3, 2, 2, dtype=torch.float64)]
)
def test_what_is_no_image_is_refused(x):
    channels = torch.ones(3)
    with pytest.raises(RuntimeError, match="image_batch_norm takes images of float32"):
        OURS(x, None, None, channels, channels, True, MOMENTUM, EPS)
    with pytest.raises(RuntimeError, match="image_batch_norm is for training"):
        OURS(torch.ones(2, 3, 2, 2), None, None, channels, channels, False, MOMENTUM, EPS)

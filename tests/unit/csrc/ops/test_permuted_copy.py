"""Copies by tiles have the elements and the layout of PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch_emu._C  # noqa: F401  (it registers the operators)

ours = torch.ops.poptorch_emu
CONTIGUOUS = torch.contiguous_format
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def filled(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor whose neighbours differ."""
    return torch.arange(math.prod(shape)).reshape(shape).remainder(251).to(dtype)


def assert_copied(x: torch.Tensor) -> None:
    """Compares a copy of `x` with PyTorch's, including its strides."""
    copy, expected = ours.clone(x, memory_format=CONTIGUOUS), x.clone(memory_format=CONTIGUOUS)
    assert torch.equal(copy, expected)
    assert copy.dtype is expected.dtype and copy.stride() == expected.stride()
    assert not copy.is_conj() and not copy.is_neg()
    assert x.numel() == 0 or copy.data_ptr() != x.data_ptr()


@st.composite
def permuted(draw: st.DrawFn) -> torch.Tensor:
    """Draws a tensor whose dimensions are cut and permuted."""
    sizes = draw(
        st.lists(st.sampled_from([1, 2, 3, 4, 7, 16, 33, 65, 130]), min_size=1, max_size=5)
    )
    while math.prod(sizes) > 60_000:
        sizes.remove(max(sizes))
    x = filled(tuple(sizes), draw(st.sampled_from(DTYPES)))
    for dim, size in enumerate(sizes):
        begin, step = draw(st.integers(0, size - 1)), draw(st.sampled_from([1, 1, 1, 2]))
        x = x[(slice(None),) * dim + (slice(begin if step == 2 else 0, None, step),)]
    return x.permute(draw(st.permutations(range(len(sizes)))))


@settings(max_examples=300)
@given(permuted())
def test_copy_when_permuted_then_equals_pytorchs(x: torch.Tensor) -> None:
    assert_copied(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(128, 64), (129, 65), (127, 63), (3, 500), (500, 3)])
def test_copy_when_at_the_edge_of_a_tile_then_equals_pytorchs(rows, columns, dtype):
    assert_copied(filled((2, rows, columns), dtype).transpose(1, 2))
    assert_copied(filled((rows, columns), dtype).t())


SPECIAL = {
    "empty": torch.empty(3, 0, 4).transpose(0, 2),
    "a scalar": torch.tensor(2.0),
    "expanded": torch.randn(4, 1, 6).expand(4, 5, 6).permute(2, 1, 0),
    "overlapping": torch.randn(40).as_strided((6, 5, 4), (1, 3, 2)),
    "conjugated": torch.randn(5, 6, 7, dtype=torch.complex64).conj().transpose(1, 2),
    "negated": torch.randn(5, 6, 7, dtype=torch.complex64).conj().imag.transpose(1, 2),
    "with an offset": torch.randn(9, 8, 7)[1:, 1:, 1:].permute(2, 0, 1),
    "channels last": torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_copy_when_special_then_equals_pytorchs(name):
    assert_copied(SPECIAL[name])


def test_copy_when_another_layout_is_asked_for_then_has_it():
    x = torch.randn(2, 3, 4, 5)
    for layout in (torch.channels_last, torch.preserve_format, None):
        for each in (x, x.permute(0, 2, 3, 1)):
            copy, expected = ours.clone(each, memory_format=layout), each.clone()
            if layout is torch.channels_last:
                expected = each.clone(memory_format=layout)
            assert torch.equal(copy, expected) and copy.stride() == expected.stride()


@pytest.mark.parametrize("shape", [(40, 50, 60), (3, 300, 100), (2000, 7, 5), (1, 500, 130)])
def test_copy_when_on_several_threads_then_equals_that_on_one(shape):
    x = filled(shape).permute(2, 0, 1)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert_copied(x)
    finally:
        torch.set_num_threads(threads)


def test_contiguous_when_it_lies_so_then_is_the_tensor_itself():
    x = torch.randn(4, 5, 6)
    assert ours.contiguous(x).data_ptr() == x.data_ptr()
    turned = x.transpose(1, 2)
    assert torch.equal(ours.contiguous(turned), turned)
    assert ours.contiguous(turned).is_contiguous()
    image = torch.randn(2, 3, 4, 5)
    copy = ours.contiguous(image, memory_format=torch.channels_last)
    assert copy.is_contiguous(memory_format=torch.channels_last)


RESHAPES = [
    ((4, 6), (3, 8)),
    ((4, 6), (-1,)),
    ((2, 3, 4), (6, 4)),
    ((2, 3, 4), (2, 3, 2, 2)),
    ((2, 3, 4), (8, -1)),
    ((1, 5, 1), (5,)),
    ((0, 3), (3, 0)),
]


@pytest.mark.parametrize(("shape", "new"), RESHAPES)
def test_reshape_when_permuted_then_equals_pytorchs_and_copies_only_where_it_must(shape, new):
    for order in (range(len(shape)), reversed(range(len(shape)))):
        x = filled(shape).permute(tuple(order))
        result, expected = ours.reshape(x, new), x.reshape(new)
        assert torch.equal(result, expected) and result.stride() == expected.stride()
        is_view = expected.data_ptr() == x.data_ptr()
        assert (result.data_ptr() == x.data_ptr()) is is_view


def test_reshape_when_sizes_do_not_fit_then_is_an_error():
    with pytest.raises(RuntimeError, match=r"shape '\[4\]' is invalid for input of size 6"):
        ours.reshape(torch.randn(2, 3), (4,))

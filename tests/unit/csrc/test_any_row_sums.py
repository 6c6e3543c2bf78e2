"""Sums of single rows, for any shape, size and number of workers, compared with dense sums."""

import pytest
import torch
from hand_built import ALL, Reg, add, executor
from hypothesis import given, settings
from hypothesis import strategies as st
from test_row_sums import updating

IN_EACH_ORDER = True

aten = torch.ops.aten


def check(
    *,
    num_rows,
    width,
    num_gradients,
    repeats,
    micro_batches,
    has_padding,
    reads_sums,
    workers,
    dtype=torch.float32,
):
    """Compares a matrix after two windows with one to which dense gradients were added."""
    windows = 2
    count = windows * micro_batches * num_gradients
    rows = torch.randn(count, width).to(dtype)
    indices = torch.randint(num_rows, (count, repeats))
    padding_index = 0 if has_padding else -1
    program = updating(
        by_rows=True,
        in_place=True,
        padding_index=padding_index,
        num_rows=num_rows,
        width=width,
        views=[("unsqueeze", 1), ("expand", [-1, repeats, width])],
        micro_batches=micro_batches,
    )
    if reads_sums:  # Reads the sums beside the update, which computes its own.
        program.load_accumulator_rows(1, 2, 0)
        add(program, 1, "sum", [Reg(2)], [5])
        program.store_output(1, 5, ALL, 1)
    engine = executor(program, workers=workers)
    start = torch.randn(num_rows, width)
    engine.write_variable(0, 0, start)
    engine.run([rows, indices], windows)
    expected = start
    spread = rows.unsqueeze(1).expand(-1, repeats, -1)
    for window in zip(spread.chunk(windows), indices.chunk(windows), strict=True):
        total = torch.zeros(num_rows, width)
        for part in zip(*(tensor.chunk(micro_batches) for tensor in window), strict=True):
            total += aten.embedding_dense_backward(*part, num_rows, padding_index, False)
        expected = expected.add(total, alpha=-0.5)
    assert torch.equal(engine.read_variable(0, 0), expected)


@settings(max_examples=80)
@given(
    num_rows=st.integers(1, 40),
    width=st.sampled_from([1, 3, 16, 64, 70]),
    num_gradients=st.integers(1, 40),
    repeats=st.sampled_from([1, 1, 2, 5]),
    micro_batches=st.integers(1, 5),
    has_padding=st.booleans(),
    reads_sums=st.booleans(),
    workers=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 99),
)
def test_update_when_rows_are_of_any_kind_then_has_the_bits_of_dense_gradients(seed, **kinds):
    torch.manual_seed(seed)
    check(**kinds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("reads_sums", [False, True])
def test_update_when_a_window_has_too_many_rows_to_keep_then_has_the_same_bits(
    reads_sums, workers, dtype
):
    # A window has 10 MB of rows. A micro-batch, which may come before its turn, has 50 KB.
    check(
        num_rows=40,
        width=1500,
        num_gradients=8,
        repeats=1,
        micro_batches=210,
        has_padding=False,
        reads_sums=reads_sums,
        workers=workers,
        dtype=dtype,
    )

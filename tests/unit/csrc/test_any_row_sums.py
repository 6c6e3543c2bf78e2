"""Sums of single rows, of any shape, size and number of workers, beside dense ones."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor
from hypothesis import given, settings
from hypothesis import strategies as st

from poptorch_emu import _C

IN_EACH_ORDER = True

aten = torch.ops.aten


def updating(num_rows, width, micro_batches, repeats, padding_index, *, reads_sums):
    """Returns a program that adds summed gradients of single rows to a matrix.

    If asked, it reads the rows and their sums first; otherwise they are made in the update.
    """
    program = _C.Program()
    backward = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(backward, 0, program.add_input("rows", True))
    program.load_input(backward, 1, program.add_input("indices", True))
    add(program, backward, "unsqueeze", [Reg(0), 1], [2])
    add(program, backward, "expand", [Reg(2), [-1, repeats, width]], [3])
    total = program.add_accumulator("g", torch.float32, False)
    program.accumulate_rows(backward, 3, total, 1, num_rows, padding_index)
    update = program.add_segment("update", 0, WINDOW)
    weight = program.add_variable("w", [num_rows, width], torch.float32, False)
    program.load_variable(update, 0, weight)
    program.load_accumulator_rows(update, 1, total)
    program.load_row_numbers(update, 2, total)
    # Value 2 is value 0 and the only constant times value 1; it takes the place of value 0.
    arguments = [[Reg(0), Reg(1)], [], [5, 2, 0, 1, -1, 0], [1.0], [2], [0], Reg(2)]
    name = "poptorch_emu::elementwise_rows"
    program.add_instruction(update, name, "", arguments, {}, [3], [], _C.Debug("update"))
    program.store_variable(update, 3, weight)
    if reads_sums:
        add(program, update, "sum", [Reg(1)], [4])
        program.store_output(update, 4, ALL, 1)
    actions = [*((backward, m) for m in range(micro_batches)), (update, 0)]
    program.set_schedule([actions], micro_batches)
    return program


def check(
    *, num_rows, width, num_gradients, repeats, micro_batches, has_padding, reads_sums, workers
):
    """Holds the matrix that two windows leave against one to which dense gradients were added."""
    windows = 2
    count = windows * micro_batches * num_gradients
    rows, indices = torch.randn(count, width), torch.randint(num_rows, (count, repeats))
    padding_index = 0 if has_padding else -1
    program = updating(
        num_rows, width, micro_batches, repeats, padding_index, reads_sums=reads_sums
    )
    engine = executor(program, workers=workers)
    start = torch.randn(num_rows, width)
    engine.write_variable(0, 0, start)
    engine.run([rows, indices], windows)
    expected = start.clone()
    spread = rows.unsqueeze(1).expand(-1, repeats, -1)
    for window in zip(spread.chunk(windows), indices.chunk(windows), strict=True):
        total = torch.zeros(num_rows, width)
        for part in zip(*(tensor.chunk(micro_batches) for tensor in window), strict=True):
            total += aten.embedding_dense_backward(*part, num_rows, padding_index, False)
        expected += total
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
    seed=st.integers(0, 99),
)
def test_update_when_rows_are_of_any_kind_then_has_the_bits_of_dense_gradients(seed, **kinds):
    torch.manual_seed(seed)
    check(**kinds)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("reads_sums", [False, True])
def test_update_when_a_window_has_too_many_rows_to_keep_then_has_the_same_bits(reads_sums, workers):
    # 10 MB, of which a micro-batch that comes before its turn has 50 KB.
    check(
        num_rows=40,
        width=1500,
        num_gradients=8,
        repeats=1,
        micro_batches=210,
        has_padding=False,
        reads_sums=reads_sums,
        workers=workers,
    )

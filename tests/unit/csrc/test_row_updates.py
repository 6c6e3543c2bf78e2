"""Elementwise operations on rows of matrices, for rows that have received gradients."""

from __future__ import annotations

import pytest
import torch
from hand_built import MICRO_BATCH, WINDOW, Reg, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

NUM_ROWS = 1200
FLOAT = torch.float32
# Values 0 and 1 are the matrices, 2 the sums of rows: 3 = 0 * 2, 4 = 3 + 0.3 * 1, 5 = √4.
CODE = [3, 3, 0, 2, 0, 0] + [5, 4, 3, 1, -1, 0] + [2, 5, 4, 0, 0, 0]


def updating(shape, *, other=None, overwritten=(1, 0), dtype=FLOAT):
    """Returns a program that updates rows of two matrices once something was added to them.

    Args:
        shape: shape of the first matrix.
        other: shape of the second matrix, by default the same.
        overwritten: index of the matrix that each of two results overwrites.
        dtype: type of the second matrix.
    """
    program = _C.Program()
    one = program.add_variable("one", list(shape), FLOAT, False)
    two = program.add_variable("two", list(other or shape), dtype, False)
    segment = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("rows", True))
    program.load_input(segment, 1, program.add_input("indices", True))
    gradient = program.add_accumulator("g", FLOAT, False)
    program.accumulate_rows(segment, 0, gradient, 1, shape[0], -1)
    update = program.add_segment("update", 0, WINDOW)
    program.load_variable(update, 0, one)
    program.load_variable(update, 1, two)
    args = [[Reg(0), Reg(1)], [], CODE, [0.3], [4, 5], list(overwritten), gradient]
    name = "poptorch_emu::elementwise_rows"
    program.add_instruction(update, name, "", args, {}, [2, 3], [0, 1], _C.Debug("update"))
    for register, place in zip((2, 3), overwritten, strict=True):
        program.store_variable(update, register, (one, two)[place])
    program.set_schedule([[(segment, 0), (update, 0)]], 1)
    return program


@pytest.mark.parametrize("width", [1, 3, 64, 511, 700, 9000])
@pytest.mark.parametrize("count", [1, 9, 1000])
def test_update_then_its_rows_get_the_results_and_the_others_stay(count: int, width: int) -> None:
    before = torch.randn(2, NUM_ROWS, width)
    gradient, numbers = torch.randn(count, width), torch.randperm(NUM_ROWS)[:count]
    engine = executor(updating((NUM_ROWS, width)), workers=2)
    for variable in range(2):
        engine.write_variable(variable, 0, before[variable])
    engine.run([gradient, numbers], 1)
    one, two = (engine.read_variable(variable, 0) for variable in range(2))
    sums = torch.add(before[0][numbers] * gradient, before[1][numbers], alpha=0.3)
    torch.testing.assert_close(two[numbers], sums, rtol=0, atol=0)
    torch.testing.assert_close(one[numbers], sums.sqrt(), rtol=0, atol=0, equal_nan=True)
    rest = torch.ones(NUM_ROWS, dtype=torch.bool).index_fill_(0, numbers, False)
    assert torch.equal(one[rest], before[0][rest]) and torch.equal(two[rest], before[1][rest])


@pytest.mark.parametrize(
    "wrong", [{"other": (5, 4)}, {"other": (6,)}, {"dtype": torch.float64}], ids=repr
)
def test_update_when_a_matrix_is_no_such_then_is_refused(wrong) -> None:
    engine = executor(updating((5, 3), **wrong))
    with pytest.raises(Error, match="contiguous matrices of float32 with rows of 3 numbers"):
        engine.run([torch.ones(2, 3), torch.tensor([0, 1])], 1)


@pytest.mark.parametrize("place", [-1, 2])
def test_update_when_a_result_has_no_matrix_then_is_refused(place: int) -> None:
    program = updating((5, 3))
    args = [[Reg(4)], [], CODE, [0.3], [4], [place], 0]
    program.load_variable(1, 4, 0)
    name = "poptorch_emu::elementwise_rows"
    program.add_instruction(1, name, "", args, {}, [5], [4], _C.Debug("wrong"))
    with pytest.raises(Error, match=f"one of 1 matrices with each result, not number {place}"):
        executor(program).run([torch.ones(2, 3), torch.tensor([0, 1])], 1)


def test_validate_when_an_update_reads_rows_of_no_sum_of_rows_then_error_tells_it() -> None:
    program = updating((5, 3))
    dense = program.add_accumulator("dense", FLOAT, False)
    args = [[Reg(4)], [], CODE, [0.3], [4], [0], dense]
    program.load_variable(1, 4, 0)
    name = "poptorch_emu::elementwise_rows"
    program.add_instruction(1, name, "", args, {}, [5], [4], _C.Debug("wrong"))
    with pytest.raises(Error, match="'wrong' asks for the rows of 'dense' that were added to"):
        program.validate()
    program = updating((5, 3))
    args[-1] = 7
    program.load_variable(0, 4, 0)
    program.add_instruction(0, name, "", args, {}, [5], [4], _C.Debug("wrong"))
    with pytest.raises(Error, match="'wrong' names accumulator 7, but there are 1"):
        program.validate()


def test_update_when_there_are_two_replicas_then_error_tells_it() -> None:
    with pytest.raises(Error, match="'update' updates single rows, which one replica can do"):
        executor(updating((5, 3)), replicas=2)


def test_program_when_written_and_read_then_is_the_same() -> None:
    program = updating((5, 3))
    program.validate()
    copy = _C.Program.deserialize(program.serialize())
    assert copy.text() == program.text()
    assert "on touched rows of accumulator g" in copy.text()

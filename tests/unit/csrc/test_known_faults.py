"""Faults that the engine once had, as regression tests."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, one_segment
from test_executor import training

from poptorch_emu.errors import Error

FLOAT = torch.float32


def register_with_a_second_use(use):
    """Returns a program that accumulates 2 * x and also passes the same register to `use`."""
    program, segment = one_segment()
    add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1])
    program.accumulate(segment, 1, program.add_accumulator("g", FLOAT, False))
    use(program, segment)
    return program


def gives_an_output(program, segment):
    program.store_output(segment, 1, ALL, 1)


def accumulates_again(program, segment):
    program.accumulate(segment, 1, program.add_accumulator("h", FLOAT, False))
    program.store_output(segment, 0, ALL, 1)


def passes_it_on(program, segment):
    other = program.add_segment("other", 0, MICRO_BATCH)
    program.add_link(segment, [1], other, [0], 1)
    add(program, other, "mul.Tensor", [Reg(0), 1.0], [1])
    program.store_output(other, 1, ALL, 1)
    program.set_schedule([[(segment, 0), (other, 0)]], 1)


@pytest.mark.parametrize(
    ("use", "expected"),
    [(gives_an_output, 6.0), (accumulates_again, 3.0), (passes_it_on, 6.0)],
    ids=["output", "accumulator", "link"],
)
def test_register_that_is_accumulated_then_later_uses_still_see_it(use, expected):
    (result,) = executor(register_with_a_second_use(use)).run([torch.tensor([3.0])], 1)
    assert result.item() == expected


@pytest.mark.parametrize("is_batched", [True, False], ids=["rows", "whole"])
def test_variable_assigned_from_an_input_then_caller_cannot_change_it(is_batched):
    program, segment = one_segment(is_batched=is_batched)
    program.store_variable(segment, 0, program.add_variable("last", [1], FLOAT, True))
    engine = executor(program)
    x = torch.ones(1)
    engine.run([x], 1)
    x.fill_(5.0)
    assert engine.read_variable(0, 0).item() == 1.0


def test_variable_assigned_from_a_scalar_then_set_scalar_leaves_it():
    program, segment = one_segment(num_inputs=0)
    program.load_scalar(segment, 0, program.add_scalar("lr", 1.0))
    program.store_variable(segment, 0, program.add_variable("v", [], torch.float64, True))
    engine = executor(program)
    engine.run([], 1)
    engine.set_scalar(0, 5.0)
    assert engine.read_variable(0, 0).item() == 1.0


def test_instruction_with_a_list_that_fails_then_error_shows_its_shapes():
    program, segment = one_segment(2)
    add(program, segment, "cat", [[Reg(0), Reg(1)]], [2])
    with pytest.raises(Error) as caught:
        executor(program).run([torch.ones(2, 3), torch.ones(2, 4)], 1)
    assert "aten::cat([float32[2, 3], float32[2, 4]], 0)" in caught.value.message


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64, torch.bfloat16], ids=str)
def test_error_that_shows_a_tensor_then_its_dtype_is_spelled_as_in_pytorch(dtype):
    with pytest.raises(Error) as caught:
        executor(training(1)).write_variable(0, 0, torch.ones(1, dtype=dtype))
    assert f"{str(dtype).removeprefix('torch.')}[1]" in caught.value.message


def test_accumulator_that_changes_its_shape_then_error_names_it():
    program, segment = one_segment(is_batched=True, num_micro_batches=2)
    add(program, segment, "nonzero", [Reg(0)], [1])
    program.accumulate(segment, 1, program.add_accumulator("g", torch.int64, False))
    with pytest.raises(Error, match="only"):
        executor(program).run([torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]])], 1)


def test_batched_input_without_dimensions_then_error_names_it():
    program, _ = one_segment()
    with pytest.raises(Error, match="x0"):
        executor(program).run([torch.tensor(1.0)], 1)


def test_run_of_no_window_then_error():
    program, _ = one_segment(num_inputs=0)
    with pytest.raises(Error, match="window"):
        executor(program).run([], 0)


def test_replicas_that_assign_a_shared_variable_then_refused():
    program, segment = one_segment()
    program.store_variable(segment, 0, program.add_variable("mean", [1], FLOAT, False))
    executor(program)
    with pytest.raises(Error, match="'only' assigns 'mean' on several replicas that share it"):
        executor(program, replicas=2)


def test_replicas_of_one_group_that_assign_its_variable_then_refused():
    program, segment = one_segment()
    variable = program.add_variable("mean", [1], FLOAT, False)
    program.store_variable(segment, 0, variable)
    program.group_variable(variable, [0, 1])
    engine = executor(program, replicas=2)
    engine.run([torch.tensor([3.0, 4.0])], 1)
    assert [engine.read_variable(variable, replica).item() for replica in (0, 1)] == [3.0, 4.0]
    program.group_variable(variable, [0, 1, 1])
    with pytest.raises(Error, match="several replicas that share it"):
        executor(program, replicas=3)


@pytest.mark.parametrize("groups", [[0], [0, -1], [0, 1, 0], [0, 2], [0, 1 << 60]], ids=str)
def test_groups_that_do_not_fit_the_replicas_then_error_names_the_variable(groups):
    program, _ = one_segment()
    program.group_variable(program.add_variable("mean", [1], FLOAT, False), groups)
    with pytest.raises(Error, match="'mean' needs a group, counted from 0, for each of 2"):
        executor(program, replicas=2)


@pytest.mark.parametrize("runners", [[2], [-1], [0, 0]], ids=str)
def test_runners_that_are_not_replicas_then_error_names_the_segment(runners):
    program, segment = one_segment()
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, runners)
    program.set_schedule([[(segment, 0), (update, 0)]], 1)
    with pytest.raises(Error, match=f"'update' is to be run by replica {runners[0]}"):
        executor(program, replicas=2)


def test_scalar_of_an_engine_made_in_inference_mode_then_can_be_set_outside_of_it():
    program, segment = one_segment(num_inputs=0)
    program.load_scalar(segment, 0, program.add_scalar("lr", 1.0))
    program.store_output(segment, 0, ALL, 1)
    with torch.inference_mode():
        engine = executor(program)
    engine.set_scalar(0, 5.0)
    assert engine.run([], 1)[0].item() == 5.0


def test_constant_then_the_caller_cannot_change_it():
    program, segment = one_segment(num_inputs=0)
    value = torch.ones(2)
    program.load_constant(segment, 0, program.add_constant(value))
    program.store_output(segment, 0, ALL, 1)
    engine = executor(program)
    value.fill_(5.0)
    assert torch.equal(engine.run([], 1)[0], torch.ones(2))

"""Faults that `check_replicas` finds in a valid program when an engine is created."""

import pytest
import torch
from hand_built import ALL, Reg, add, executor
from test_replica_engine import part, summing

from poptorch_emu import _C
from poptorch_emu.errors import Error

FLOAT = torch.float32


def reducing(*runners, groups=(), ipus=(0, 0)):
    """Returns a program whose window segments add up one accumulator; only its form matters."""
    program = _C.Program()
    gradient = program.add_accumulator("g", FLOAT, False)
    program.group_accumulator(gradient, groups)
    rows = [[] for _ in range(1 + max(ipus))]
    for number, of_segment in enumerate(runners):
        segment = part(program, f"reduce {number}", of_segment)
        program.reduce(segment, gradient)
        rows[0].append((segment, 0))
    update = part(program, "update", [0], ipu=ipus[1])
    program.load_accumulator(update, 0, gradient)
    rows[ipus[1]].append((update, 0))
    program.set_schedule(rows, 1)
    return program


@pytest.mark.parametrize(
    ("runners", "groups", "text"),
    [
        ([0], (), "adds up 'g' over a group of replicas on replica 0, but not on 1"),
        ([1, 2, 3], (), "on replica 1, but not on 0"),
        ([0, 1, 2], [0, 1, 0, 1], "on replica 1, but not on 3"),
    ],
    ids=["one", "all-but-one", "half-of-a-group"],
)
def test_reduction_when_members_of_a_group_are_missing_then_refused(runners, groups, text):
    with pytest.raises(Error, match=text):
        executor(reducing(runners, groups=groups), replicas=4)


@pytest.mark.parametrize(
    ("runners", "groups"),
    [(([0, 1, 2, 3],), ()), (([0, 1], [2, 3]), [0, 0, 1, 1]), (([0],), [0, 1, 2, 3])],
    ids=["everyone", "group-by-group", "alone"],
)
def test_reduction_when_groups_are_complete_then_accepted(runners, groups):
    executor(reducing(*runners, groups=groups), replicas=4)


def test_group_that_nobody_reduced_beside_one_that_was_then_error():
    program = summing(4, size=1, groups=[0, 0, 1, 1])
    program.set_runners(1, [0, 1])
    with pytest.raises(Error, match="'g' was not added up over its replicas"):
        executor(program, replicas=4).run([torch.ones(4)], 1)


def test_reduction_when_done_twice_then_refused():
    with pytest.raises(Error, match="'g' is added up over replicas twice, .* 'reduce 1'"):
        executor(reducing([0, 1], [0, 1]), replicas=2)


def test_accumulator_when_added_up_on_another_ipu_then_refused():
    with pytest.raises(Error, match="'update' on IPU 1 reads accumulator 'g', .* on IPU 0"):
        executor(reducing([0, 1], ipus=(0, 1)), replicas=2)


def test_segment_that_reduces_and_reads_the_sum_then_refused_with_several_replicas():
    program = _C.Program()
    gradient = program.add_accumulator("g", FLOAT, False)
    segment = part(program, "both", range(2))
    program.reduce(segment, gradient)
    program.load_accumulator(segment, 0, gradient)
    program.set_schedule([[(segment, 0)]], 1)
    with pytest.raises(Error, match="'both' adds up 'g' over replicas and reads it"):
        executor(program, replicas=2)
    program.group_accumulator(gradient, [0, 1])
    executor(program, replicas=2)


def assigning_parts(runners, *, is_per_replica=False, groups=(), is_sharded=False):
    program = _C.Program()
    value = program.add_variable("value", [4], FLOAT, is_per_replica)
    program.group_variable(value, groups)
    if is_sharded:
        program.shard_variable(value)
    update = part(program, "update", runners)
    program.load_constant(update, 0, program.add_constant(torch.ones(2)))
    add(program, update, "neg", [Reg(0)], [1])
    program.store_variable_shard(update, 1, value)
    program.set_schedule([[(update, 0)]], 1)
    return program


@pytest.mark.parametrize("is_sharded", [False, True])
def test_parts_when_some_replicas_assign_none_then_refused(is_sharded):
    program = assigning_parts([0, 2], is_sharded=is_sharded)
    with pytest.raises(Error, match="a part of 'value' on 2 of 3 replicas, but each must"):
        executor(program, replicas=3)


@pytest.mark.parametrize(
    "setting", [{"is_per_replica": True}, {"groups": [0, 1]}, {"groups": [1, 1]}], ids=str
)
def test_parts_of_a_variable_that_replicas_have_copies_of_then_refused(setting):
    with pytest.raises(Error, match="'value' on each replica, but replicas have whole copies"):
        executor(assigning_parts([0, 1], **setting), replicas=2)


@pytest.mark.parametrize("setting", [{}, {"groups": [0, 0]}, {"is_sharded": True}], ids=str)
def test_parts_of_a_variable_with_one_copy_then_assigned(setting):
    engine = executor(assigning_parts([0, 1], **setting), replicas=2)
    engine.run([], 1)
    assert torch.equal(engine.read_variable(0, 1), -torch.ones(4))


def test_output_of_a_window_when_some_replicas_give_none_then_refused():
    program = _C.Program()
    update = part(program, "update", [0, 1])
    program.load_constant(update, 0, program.add_constant(torch.ones(2)))
    program.store_output(update, 0, ALL, 1)
    program.set_schedule([[(update, 0)]], 1)
    with pytest.raises(Error, match="'update' gives an output on 2 of 3 replicas"):
        executor(program, replicas=3)
    assert executor(program, replicas=2).run([], 1)[0].tolist() == [1.0] * 4


def test_part_of_a_sharded_accumulator_that_is_empty_then_error_names_it():
    program = _C.Program()
    gradient = program.add_accumulator("g", FLOAT, False)
    program.shard_accumulator(gradient)
    update = part(program, "update", [0, 1])
    program.load_accumulator_shard(update, 0, gradient)
    program.set_schedule([[(update, 0)]], 1)
    with pytest.raises(Error, match="Accumulator 'g' is empty"):
        executor(program, replicas=2).run([], 1)

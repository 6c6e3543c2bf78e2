"""Faults that `validate` finds in a program, and the text of a program."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, one_segment, pipeline

from poptorch_emu import _C
from poptorch_emu.errors import Error


def reads_unwritten(program, segment):
    add(program, segment, "neg", [Reg(1)], [1])


def reads_far_outside(program, segment):
    add(program, segment, "neg", [Reg(7)], [1])


def reads_unwritten_in_a_list(program, segment):
    add(program, segment, "neg", [Reg(0)], [2])
    add(program, segment, "cat", [[Reg(0), Reg(1)]], [3])


def reads_after_death(program, segment):
    add(program, segment, "neg", [Reg(0)], [1], dies=[0])
    add(program, segment, "abs", [Reg(0)], [2])


def kills_unwritten(program, segment):
    add(program, segment, "neg", [Reg(0)], [2], dies=[1])


def writes_twice(program, segment):
    add(program, segment, "neg", [Reg(0)], [0])


def loads_twice(program, segment):
    program.load_input(segment, 0, 0)


def loads_into_nothing(program, segment):
    program.load_input(segment, -1, 0)


def stores_unwritten(program, segment):
    add(program, segment, "neg", [Reg(0)], [2])
    program.store_output(segment, 1, ALL, 1)


def loads_unknown_input(program, segment):
    program.load_input(segment, 1, 4)


def loads_unknown_variable(program, segment):
    program.load_variable(segment, 1, 0)


def loads_unknown_constant(program, segment):
    program.load_constant(segment, 1, -1)


def loads_unknown_scalar(program, segment):
    program.load_scalar(segment, 1, 2)


def loads_unknown_accumulator(program, segment):
    program.load_accumulator(segment, 1, 0)


def loads_accumulator_too_early(program, segment):
    program.load_accumulator(segment, 1, program.add_accumulator("g", torch.float32, False))


def stores_to_unknown_variable(program, segment):
    program.store_variable(segment, 0, 3)


def accumulates_to_unknown(program, segment):
    program.accumulate(segment, 0, 3)


def links_ends_that_differ(program, segment):
    other = program.add_segment("other", 0, MICRO_BATCH)
    program.add_link(segment, [0], other, [0, 1], 1)


def links_without_room(program, segment):
    program.add_link(segment, [0], program.add_segment("other", 0, MICRO_BATCH), [0], 0)


def links_twice(program, segment):
    other = program.add_segment("other", 0, MICRO_BATCH)
    program.add_link(segment, [0], other, [0], 1)
    program.add_link(segment, [0], other, [1], 1)


def links_an_unwritten_register(program, segment):
    other = program.add_segment("other", 0, MICRO_BATCH)
    add(program, segment, "neg", [Reg(0)], [2])
    program.add_link(segment, [1], other, [0], 1)


def links_into_a_loaded_register(program, segment):
    other = program.add_segment("other", 0, MICRO_BATCH)
    program.load_input(other, 0, 0)
    program.add_link(segment, [0], other, [0], 1)


def forgets_a_segment(program, segment):
    program.add_segment("forgotten", 0, MICRO_BATCH)


def runs_unknown_segment(program, segment):
    program.set_schedule([[(segment, 0), (5, 0)]], 1)


def runs_on_another_ipu(program, segment):
    program.set_schedule([[], [(segment, 0)]], 1)


def runs_twice(program, segment):
    program.set_schedule([[(segment, 0), (segment, 0)]], 1)


def starts_before_the_first_micro_batch(program, segment):
    program.set_schedule([[(segment, -1), (segment, 1)]], 2)


def skips_a_micro_batch(program, segment):
    program.set_schedule([[(segment, 0), (segment, 2)]], 2)


def runs_too_few_micro_batches(program, segment):
    program.set_schedule([[(segment, 0)]], 2)


def assigns_one_for_all(program, segment):
    update = program.add_segment("update", 0, WINDOW)
    variable = program.add_variable("w", [1], torch.float32, True)
    program.load_variable(update, 0, variable)
    program.store_variable(update, 0, variable)
    program.set_schedule([[(segment, 0), (update, 0)]], 1)


def runs_micro_batches_out_of_order(program, segment):
    program.set_schedule([[(segment, 1), (segment, 0)]], 2)


def has_more_outputs_than_the_operator(program, segment):
    add(program, segment, "neg", [Reg(0)], [1, 2])


def accumulates_twice(program, segment):
    add(program, segment, "neg", [Reg(0)], [1])
    accumulator = program.add_accumulator("g", torch.float32, False)
    program.accumulate(segment, 0, accumulator)
    program.accumulate(segment, 1, accumulator)


def accumulates_in_a_window(program, segment):
    update = program.add_segment("update", 0, WINDOW)
    program.load_constant(update, 0, program.add_constant(torch.ones(1)))
    program.accumulate(update, 0, program.add_accumulator("g", torch.float32, False))
    program.set_schedule([[(segment, 0), (update, 0)]], 1)


def runs_nowhere(program, segment):
    program.set_runners(program.add_segment("update", 0, WINDOW), [])


def reduces_in_a_micro_batch(program, segment):
    program.reduce(segment, program.add_accumulator("g", torch.float32, False))


def reduces_a_sharded_accumulator(program, segment):
    accumulator = program.add_accumulator("g", torch.float32, False)
    program.shard_accumulator(accumulator)
    program.reduce(program.add_segment("reduce", 0, WINDOW), accumulator)


def assigns_the_whole_of_a_part(program, segment):
    variable = program.add_variable("w", [1], torch.float32, False)
    program.shard_variable(variable)
    program.store_variable(segment, 0, variable)


FAULTS = [
    (reads_unwritten, "'neg' in segment 'only' reads register 1, which holds nothing there"),
    (reads_far_outside, "'neg' in segment 'only' names register 7 of 2"),
    (reads_unwritten_in_a_list, "'cat' in segment 'only' reads register 1"),
    (reads_after_death, "'abs' in segment 'only' reads register 0"),
    (kills_unwritten, "'neg' in segment 'only' reads register 1"),
    (writes_twice, "'neg' in segment 'only' writes register 0 again"),
    (loads_twice, "'a load' in segment 'only' writes register 0 again"),
    (loads_into_nothing, "'a load' in segment 'only' names register -1 of 1"),
    (stores_unwritten, "'a store' in segment 'only' reads register 1"),
    (loads_unknown_input, "segment 'only' names input 4, but there are 1"),
    (loads_unknown_variable, "names variable 0, but there are 0"),
    (loads_unknown_constant, "names constant -1, but there are 0"),
    (loads_unknown_scalar, "names scalar 2, but there are 0"),
    (loads_unknown_accumulator, "names accumulator 0, but there are 0"),
    (loads_accumulator_too_early, "'only' reads an accumulator, which only a window segment may"),
    (stores_to_unknown_variable, "A store of segment 'only' names variable 3"),
    (accumulates_to_unknown, "A store of segment 'only' names accumulator 3"),
    (links_ends_that_differ, "link from 'only' to 'other' needs as many registers at both ends"),
    (links_without_room, "room for at least one item"),
    (links_twice, "There are two links from 'only' to 'other'"),
    (links_an_unwritten_register, "'a link' in segment 'only' reads register 1"),
    (links_into_a_loaded_register, "'a link' in segment 'other' writes register 0 again"),
    (forgets_a_segment, "'forgotten' is scheduled 0 times in a window instead of 1"),
    (runs_unknown_segment, "The schedule names segment 5, but there are 1"),
    (runs_on_another_ipu, "IPU 1 is to run 'only', which belongs to IPU 0"),
    (runs_twice, "'only' runs twice for micro-batch 0"),
    (starts_before_the_first_micro_batch, "'only' runs for micro-batch -1, but they are counted"),
    (skips_a_micro_batch, "'only' is scheduled 2 times in a window instead of 2"),
    (runs_too_few_micro_batches, "'only' is scheduled 1 times in a window instead of 2"),
    (assigns_one_for_all, "segment 'update' assigns a variable that each replica has its own of"),
    (runs_micro_batches_out_of_order, "'only' runs for micro-batch 0 after 1, but their order"),
    (has_more_outputs_than_the_operator, "'only' has 2 outputs, but its operator returns 1"),
    (accumulates_twice, "Accumulator 'g' is added to twice, the second time in segment"),
    (accumulates_in_a_window, "'update' adds to an accumulator, which in a window every replica"),
    (runs_nowhere, "Segment 'update' is to be run by no replica"),
    (reduces_in_a_micro_batch, "'only' adds up 'g' over replicas, which only a window segment"),
    (reduces_a_sharded_accumulator, "'reduce' adds up 'g' again, of which each replica holds a"),
    (assigns_the_whole_of_a_part, "assigns the whole of 'w', of which each replica holds a part"),
]


@pytest.mark.parametrize(("break_it", "text"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_validate_when_program_has_a_fault_then_error_tells_it(break_it, text):
    program, segment = one_segment()
    program.validate()
    break_it(program, segment)
    with pytest.raises(Error) as caught:
        program.validate()
    assert text in caught.value.message
    assert caught.value.type == "poptorch_cpp_error"


@pytest.mark.parametrize("method", ["load_rng", "store_variable"])
def test_builder_when_segment_is_unknown_then_index_error(method):
    program, _ = one_segment()
    arguments = {"load_rng": (3, 0), "store_variable": (3, 0, 0)}[method]
    with pytest.raises(IndexError):
        getattr(program, method)(*arguments)


def test_text_then_lists_segments_instructions_and_links():
    program = pipeline(2, 3, capacity=4)
    text = program.text()
    assert "stage1 on IPU 1: 3 registers, 0 loads, 1 stores" in text
    assert "%1 = aten::mul.Tensor( %0 )" in text
    assert "link stage0 -> stage1: 1 tensors, depth 4, %2 -> %0" in text
    assert str(program) == text


def test_text_then_tells_what_registers_are_and_who_runs_and_holds_what():
    program, segment = one_segment(2)
    weight = program.add_variable("w", [4, 2], torch.float16, False)
    own = program.add_variable("own", [], torch.float32, True)
    gradient = program.add_accumulator("g", torch.float32, True)
    cut = program.add_accumulator("cut", torch.float32, False)
    program.group_variable(weight, [0, 1])
    program.shard_accumulator(cut)
    program.set_remote_variable(own)
    add(program, segment, "index.Tensor", [Reg(0), [None, Reg(1)]], [2])
    program.accumulate(segment, 2, gradient)
    program.accumulate(segment, 0, cut)
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, [0, 1])
    program.reduce(update, gradient)
    program.load_accumulator_shard(update, 0, cut)
    program.load_scalar(update, 1, program.add_scalar("lr", 0.1))
    program.load_constant(update, 2, program.add_constant(torch.ones(3)))
    program.load_rng(update, 3)
    program.store_variable(update, 1, own)
    program.store_output(update, 2, ALL, 1)
    assert program.text().splitlines() == [
        "variable w: float16[4, 2], groups [0, 1]",
        "variable own: float32[], of each replica, in streaming memory",
        "accumulator g: float32, running mean",
        "accumulator cut: float32, in parts",
        "only on IPU 0: 3 registers, 2 loads, 2 stores",
        "  %0 = input x0",
        "  %1 = input x1",
        "  %2 = aten::index.Tensor( %0 [ - %1 ] )  # index ",
        "  %2 -> accumulator g",
        "  %0 -> accumulator cut",
        "update on IPU 0: 4 registers, 4 loads, 2 stores, once in a window by replicas [0, 1]",
        "  adds up accumulator g over replicas",
        "  %0 = part of accumulator cut",
        "  %1 = scalar lr",
        "  %2 = constant float32[3]",
        "  %3 = random state",
        "  %1 -> variable own",
        "  %2 -> output 0",
    ]


def test_indices_then_each_table_counts_from_zero():
    program = _C.Program()
    for expected in (0, 1):
        assert program.add_constant(torch.ones(1)) == expected
        assert program.add_variable("v", [1], torch.float32, False) == expected
        assert program.add_scalar("s", 1.0) == expected
        assert program.add_accumulator("a", torch.float32, False) == expected
        assert program.add_input("x", True) == expected
        assert program.add_segment("s", 0, MICRO_BATCH) == expected


def test_enums_then_numbers_are_those_of_poptorch():
    modes = _C.OutputMode
    assert [int(m) for m in (modes.FINAL, modes.EVERY_N, modes.ALL, modes.SUM)] == [0, 1, 2, 3]

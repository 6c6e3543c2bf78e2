"""Weights of images, converted once and again when they have changed."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

SHAPE = [4, 3, 3, 3]
N = 2


def program_of(*, trains=False, is_remote=False, shape=SHAPE):
    """Returns a program that gives a weight, channels last, and adds 1 to it in each window."""
    program = _C.Program()
    weight = program.add_variable("weight", shape, torch.float32, False)
    if is_remote:
        program.set_remote_variable(weight)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_image_variable(segment, 0, weight)
    program.load_input(segment, 2, program.add_input("x", True))
    add(program, segment, "mul.Tensor", [Reg(0), Reg(2)], [1])
    program.store_output(segment, 1, ALL, 1)
    actions = [(segment, index) for index in range(N)]
    if trains:
        update = program.add_segment("update", 0, WINDOW)
        program.load_variable(update, 0, weight)
        add(program, update, "add.Tensor", [Reg(0), 1.0], [1])
        program.store_variable(update, 1, weight)
        actions.append((update, 0))
    program.set_schedule([actions], N)
    return program


def run(engine, windows=1):
    """Returns what each micro-batch was given."""
    (values,) = engine.run([torch.ones(N * windows * SHAPE[0], 1, 1, 1)], windows)
    return values.split(SHAPE[0])


@pytest.mark.parametrize("is_remote", [False, True], ids=["on chip", "remote"])
def test_weight_when_it_is_written_then_is_converted_again(is_remote):
    engine = executor(program_of(is_remote=is_remote))
    for _ in range(3):
        weight = torch.randn(SHAPE)
        engine.write_variable(0, 0, weight)
        assert all(torch.equal(value, weight) for value in run(engine))


@pytest.mark.parametrize("workers", [1, 3])
def test_weight_when_an_update_changes_it_then_is_converted_again(workers):
    engine = executor(program_of(trains=True), workers=workers)
    weight = torch.randn(SHAPE)
    engine.write_variable(0, 0, weight)
    for window, values in enumerate(zip(*[iter(run(engine, 3))] * N, strict=True)):
        expected = weight.clone()
        for _ in range(window):
            expected = expected + 1.0
        assert all(torch.equal(value, expected) for value in values)


def test_weight_when_a_call_ran_in_inference_mode_then_the_next_one_goes_on():
    engine = executor(program_of(trains=True))
    with torch.inference_mode():
        run(engine)
    before = engine.read_variable(0, 0)
    assert torch.equal(run(engine)[0], before)


def in_three_dimensions():
    return program_of(shape=[4, 3, 3])


def in_an_update():
    program = program_of(trains=True)
    program.load_image_variable(1, 5, 0)
    return program


def changed_by_forward():
    program = program_of()
    program.store_variable(0, 1, 0)
    return program


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (in_three_dimensions, "'weight', which must have four dimensions"),
        (in_an_update, "which must have four dimensions and be read by a micro-batch segment"),
        (changed_by_forward, "'weight', which segment 'forward' changes in each micro-batch"),
    ],
)
def test_program_when_a_weight_cannot_stay_converted_then_is_refused(make, message):
    with pytest.raises(Error, match=message):
        make().validate()


def test_text_when_a_weight_is_converted_then_says_so():
    assert "%0 = variable weight, channels last" in program_of().text()

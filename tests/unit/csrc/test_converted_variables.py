"""Weights of images and of linear layers, converted once and again when they have changed."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

IMAGES, PACKED = "images", "packed"
SHAPES = {IMAGES: [4, 3, 3, 3], PACKED: [6, 5]}
# What an operation is given beside the weight, so that it gives the weight, as it is or transposed.
ONES = {IMAGES: torch.ones(4, 1, 1, 1), PACKED: torch.eye(5)}
N = 2


# Two rows of a fused update: one number is added to a weight, which is overwritten or not.
ADD_ONE = [0, 1, 0, 0, 0, 0, 5, 2, 1, -1, -1, 0]


def program_of(
    form, *, trains=False, in_place=False, is_remote=False, shape=None, dtype=torch.float32
):
    """Returns a program that gives a converted weight, and adds 1 to it in each window."""
    program = _C.Program()
    weight = program.add_variable("weight", shape or SHAPES[form], dtype, False)
    if is_remote:
        program.set_remote_variable(weight)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_input(segment, 2, program.add_input("x", True))
    if form == IMAGES:
        program.load_image_variable(segment, 0, weight)
        add(program, segment, "mul.Tensor", [Reg(0), Reg(2)], [1])
    else:
        program.load_packed_variable(segment, 0, weight, SHAPES[form][1])
        args = [Reg(2), Reg(0), None, SHAPES[form][0]]
        operator = "poptorch_emu::packed_linear"
        program.add_instruction(segment, operator, "", args, {}, [1], [], _C.Debug("linear"))
    program.store_output(segment, 1, ALL, 1)
    actions = [(segment, index) for index in range(N)]
    if trains:
        update = program.add_segment("update", 0, WINDOW)
        program.load_variable(update, 0, weight)
        args = [[Reg(0)], [], ADD_ONE, [1.0], [2], [0 if in_place else -1]]
        debug = _C.Debug("update")
        program.add_instruction(update, "poptorch_emu::elementwise", "", args, {}, [1], [], debug)
        program.store_variable(update, 1, weight)
        actions.append((update, 0))
    program.set_schedule([actions], N)
    return program


def run(engine, form, windows=1):
    """Returns the weight that each micro-batch was given."""
    (values,) = engine.run([torch.cat([ONES[form]] * N * windows)], windows)
    weights = values.split(len(ONES[form]))
    return weights if form == IMAGES else [weight.t() for weight in weights]


@pytest.mark.parametrize(
    ("form", "dtype"), [(IMAGES, torch.float32), (PACKED, torch.float32), (PACKED, torch.float16)]
)
@pytest.mark.parametrize("is_remote", [False, True], ids=["on chip", "remote"])
def test_weight_when_it_is_written_then_is_converted_again(form, dtype, is_remote):
    engine = executor(program_of(form, is_remote=is_remote, dtype=dtype))
    for _ in range(3):
        weight = torch.randn(SHAPES[form]).to(dtype)
        engine.write_variable(0, 0, weight)
        assert all(torch.equal(value, weight.float()) for value in run(engine, form))


@pytest.mark.parametrize("form", [IMAGES, PACKED])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("in_place", [False, True], ids=["anew", "in its place"])
def test_weight_when_an_update_changes_it_then_is_converted_again(form, workers, in_place):
    engine = executor(program_of(form, trains=True, in_place=in_place), workers=workers)
    for _ in range(2):
        expected = torch.randn(SHAPES[form])
        engine.write_variable(0, 0, expected)
        for values in zip(*[iter(run(engine, form, 3))] * N, strict=True):
            assert all(torch.equal(value, expected) for value in values)
            expected = expected + 1.0
        assert torch.equal(engine.read_variable(0, 0), expected)


@pytest.mark.parametrize("form", [IMAGES, PACKED])
def test_weight_when_a_call_ran_in_inference_mode_then_the_next_one_goes_on(form):
    engine = executor(program_of(form, trains=True))
    with torch.inference_mode():
        run(engine, form)
    before = engine.read_variable(0, 0)
    assert torch.equal(run(engine, form)[0], before)


def in_three_dimensions(form):
    return program_of(form, shape=[4, 3, 3])


def load(program, form, segment, rows=SHAPES[PACKED][1]):
    if form == IMAGES:
        program.load_image_variable(segment, 5, 0)
    else:
        program.load_packed_variable(segment, 5, 0, rows)
    return program


def in_an_update(form):
    return load(program_of(form, trains=True), form, 1)


def changed_by_forward(form):
    program = program_of(form)
    program.store_variable(0, 1, 0)
    return program


@pytest.mark.parametrize(
    ("form", "make", "message"),
    [
        (IMAGES, in_three_dimensions, "'weight', which must have 4 dimensions"),
        (PACKED, in_three_dimensions, "'weight', which must have 2 dimensions"),
        (IMAGES, in_an_update, "which must have 4 dimensions and be read by a micro-batch segment"),
        (PACKED, in_an_update, "which must have 2 dimensions and be read by a micro-batch segment"),
        (IMAGES, changed_by_forward, "'weight', which segment 'forward' changes in each micro-"),
        (PACKED, changed_by_forward, "'weight', which segment 'forward' changes in each micro-"),
    ],
)
def test_program_when_a_weight_cannot_stay_converted_then_is_refused(form, make, message):
    with pytest.raises(Error, match=message):
        make(form).validate()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: load(program_of(PACKED), PACKED, 0, 7), "'weight' for 7 rows, and another load"),
        (
            lambda: load(program_of(PACKED), PACKED, 0, 0),
            "'weight' for 0 rows; it must be float32 or",
        ),
        (
            lambda: program_of(PACKED, dtype=torch.float64),
            "it must be float32 or float16, for at least one",
        ),
    ],
)
def test_program_when_a_weight_cannot_be_packed_then_is_refused(make, message):
    with pytest.raises(Error, match=message):
        make().validate()


def test_text_when_a_weight_is_converted_then_says_so():
    assert "%0 = variable weight, channels last" in program_of(IMAGES).text()
    assert "%0 = variable weight, packed for 5 rows" in program_of(PACKED).text()

"""Weights that are prepared once for a window, and again in the same memory after a change."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor
from support.processors import ANY

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

IMAGES, PACKED = "images", "packed"
SHAPES = {IMAGES: [4, 3, 3, 3], PACKED: [6, 5]}
# The other operand of an operation, for which the result is the weight or its transpose.
ONES = {IMAGES: torch.ones(4, 1, 1, 1), PACKED: torch.eye(5)}
N = 2
RUNS: list[int] = []


@pytest.fixture(scope="module")
def counted():
    """An operator that doubles, and records the address of its result in `RUNS`."""
    library = torch.library.Library("prepared_weights", "DEF")
    library.define("double(Tensor x, *, Tensor(a!)? out) -> Tensor(a!)")

    def double(x: torch.Tensor, *, out: torch.Tensor | None) -> torch.Tensor:
        result = torch.empty(x.shape) if out is None else out
        result.copy_(x * 2)
        RUNS.append(result.data_ptr())
        return result

    library.impl("double", double, "CPU")
    yield "prepared_weights::double"
    library._destroy()


@pytest.fixture(autouse=True)
def no_runs():
    RUNS.clear()


# Two rows of a fused update: one number is added to a weight, which is overwritten or not.
ADD_ONE = [0, 1, 0, 0, 0, 0, 5, 2, 1, -1, -1, 0]


def add_preparation(program, weight, operator, *args, overload="out"):
    """Adds a preparation that fills register 1 with an operator's result for a weight."""
    preparation = program.add_segment("prepare weight", 0, _C.SegmentKind.PREPARATION)
    program.set_lifetime(preparation, _C.Lifetime.WINDOW)
    program.load_variable(preparation, 0, weight)
    kwargs = {"out": Reg(1)} if overload == "out" else {}
    program.add_instruction(
        *(preparation, operator, "" if "double" in operator else overload),
        *([Reg(0), *args], kwargs, [1], [0], _C.Debug("convert")),
    )
    return preparation


def add_update(program, weight, in_place, runners=(0,)):
    """Adds a segment that adds 1 to a weight."""
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, list(runners))
    program.load_variable(update, 0, weight)
    args = [[Reg(0)], [], ADD_ONE, [1.0], [2], [0 if in_place else -1]]
    debug = _C.Debug("update")
    program.add_instruction(update, "poptorch_emu::elementwise", "", args, {}, [1], [], debug)
    program.store_variable(update, 1, weight)
    return update


def program_of(form, *, trains=False, in_place=False, dtype=torch.float32):
    """Returns a program that outputs a converted weight, and adds 1 to it in each window."""
    program = _C.Program()
    weight = program.add_variable("weight", SHAPES[form], dtype, False)
    if form == IMAGES:
        preparation = add_preparation(program, weight, "poptorch_emu::channels_last")
    else:
        rows = SHAPES[form][1]
        preparation = add_preparation(program, weight, "poptorch_emu::pack_weight", ANY, rows)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_input(segment, 2, program.add_input("x", True))
    program.load_prepared(segment, 0, preparation, 1)
    if form == IMAGES:
        add(program, segment, "mul.Tensor", [Reg(0), Reg(2)], [1])
    else:
        args = [Reg(2), Reg(0), None, SHAPES[form][0], ANY]
        operator = "poptorch_emu::packed_linear"
        program.add_instruction(segment, operator, "", args, {}, [1], [], _C.Debug("linear"))
    program.store_output(segment, 1, ALL, 1)
    actions = [(segment, index) for index in range(N)]
    if trains:
        actions.append((add_update(program, weight, in_place), 0))
    program.set_schedule([actions], N)
    return program


def run(engine, form, windows=1):
    """Returns the weight that each micro-batch has read."""
    (values,) = engine.run([torch.cat([ONES[form]] * N * windows)], windows)
    weights = values.split(len(ONES[form]))
    return weights if form == IMAGES else [weight.t() for weight in weights]


@pytest.mark.parametrize(
    ("form", "dtype"), [(IMAGES, torch.float32), (PACKED, torch.float32), (PACKED, torch.float16)]
)
def test_weight_when_it_is_written_then_is_converted_again(form, dtype):
    engine = executor(program_of(form, dtype=dtype))
    for _ in range(3):
        weight = torch.randn(SHAPES[form]).to(dtype)
        engine.write_variable(0, 0, weight)
        assert all(torch.equal(value, weight.float()) for value in run(engine, form))
        read = engine.read_variable(0, 0)
        assert torch.equal(read, weight) and read.is_contiguous() and read.dtype is dtype


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


def counted_program(counted, *, in_place=True, groups=(), is_per_replica=False, fails=False):
    """Returns a program that multiplies by twice a weight. Each window adds 1 to the weight."""
    program = _C.Program()
    weight = program.add_variable("weight", [4], torch.float32, is_per_replica)
    program.group_variable(weight, list(groups))
    preparation = add_preparation(program, weight, counted)
    segment = program.add_segment("forward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    program.load_prepared(segment, 1, preparation, 1)
    add(program, segment, "mul.Tensor", [Reg(0), Reg(1)], [2])
    program.store_output(segment, 2, ALL, 1)
    runners = sorted({list(groups).index(group) for group in groups}) or [0]
    update = add_update(program, weight, in_place, [0, 1] if is_per_replica else runners)
    actions = [(segment, index) for index in range(N)] + [(update, 0)]
    if fails:
        check = program.add_segment("check", 0, WINDOW)
        program.load_scalar(check, 0, program.add_scalar("probability", 1.0))
        add(program, check, "reshape", [Reg(0), [1]], [1])
        add(program, check, "multinomial", [Reg(1), 1, True], [2])
        actions.append((check, 0))
    program.set_schedule([actions], N)
    return program


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("in_place", [False, True], ids=["anew", "in its place"])
def test_weight_then_is_prepared_once_a_window_in_the_same_memory(counted, workers, in_place):
    engine = executor(counted_program(counted, in_place=in_place), workers=workers)
    for call in range(2):
        values = engine.run([torch.ones(3 * N, 4)], 3)[0][:, 0].tolist()
        assert values == [2.0 * (3 * call + window) for window in range(3) for _ in range(N)]
        # An update in place also prepares the weight for the next window.
        assert len(RUNS) == 3 * (call + 1) + in_place
    assert len(set(RUNS)) == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("in_place", [False, True], ids=["anew", "in its place"])
@pytest.mark.parametrize(
    ("replicas", "own"),
    [(4, {"groups": (0, 1, 0, 1)}), (2, {"is_per_replica": True}), (2, {})],
    ids=["groups", "each", "common"],
)
def test_weights_of_replicas_then_are_prepared_for_each_copy(
    counted, workers, in_place, replicas, own
):
    program = counted_program(counted, in_place=in_place, **own)
    engine = executor(program, replicas=replicas, workers=workers)
    num_copies = 2 if own else 1
    for replica in range(replicas):
        engine.write_variable(0, replica, torch.full([4], 10.0 * (replica % num_copies)))
    x = torch.ones(2 * N * replicas, 4)
    values = engine.run([x], 2)[0][:, 0].reshape(2 * N, replicas).tolist()
    expected = [
        [2.0 * (10.0 * (replica % num_copies) + window) for replica in range(replicas)]
        for window in range(2)
        for _ in range(N)
    ]
    assert values == expected
    assert len(set(RUNS)) == num_copies
    assert len(RUNS) == num_copies * (2 + in_place)


def test_weight_when_a_window_fails_then_is_prepared_as_it_was_before(counted):
    engine = executor(counted_program(counted, in_place=False, fails=True))
    for probability, message in ((1.0, None), (-1.0, "multinomial"), (1.0, None)):
        engine.set_scalar(0, probability)
        if message is None:
            before = engine.read_variable(0, 0)
            values = engine.run([torch.ones(N, 4)], 1)[0]
            assert torch.equal(values, 2 * before.expand(N, 4))
            continue
        with pytest.raises(Error, match=message):
            engine.run([torch.ones(N, 4)], 1)
        assert engine.read_variable(0, 0).tolist() == [1.0] * 4


def loads_two_variables(program):
    program.load_variable(0, 5, program.add_variable("other", [2], torch.float32, False))


def reads_a_remote_variable(program):
    program.set_remote_variable(0)


def is_changed_by_forward(program):
    program.store_variable(1, 2, 0)


def is_read_by_an_update(program):
    program.load_prepared(2, 5, 0, 1)


def makes_new_memory(program):
    add(program, 0, "neg", [Reg(1)], [2])


def reads_a_result_of_nobody(program):
    kwargs = {"out": Reg(2)}
    program.add_instruction(
        *(0, "poptorch_emu::channels_last", "out", [Reg(1)], kwargs, [3], [], _C.Debug("other"))
    )


FAULTS = [
    (loads_two_variables, "loads 2 variables instead of 1"),
    (reads_a_remote_variable, "reads 'weight', which must be whole and not in streaming memory"),
    (is_changed_by_forward, "reads 'weight', which segment 'forward' stores in each micro-batch"),
    (is_read_by_an_update, "which only segments of micro-batches may do: an update changes it"),
    (makes_new_memory, "'neg' cannot write its result in the memory of the last"),
    (reads_a_result_of_nobody, "'other' in segment 'prepare weight' reads register 2"),
]


@pytest.mark.parametrize(("break_it", "text"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_program_when_a_preparation_has_a_fault_then_is_refused(counted, break_it, text):
    program = counted_program(counted)
    break_it(program)
    with pytest.raises(Error) as caught:
        program.validate()
    assert text in caught.value.message


def test_text_when_a_weight_is_prepared_then_says_so():
    lines = program_of(PACKED).text().splitlines()
    assert (
        "prepare weight on IPU 0: 2 registers, 1 loads, 0 stores, again when its variable has "
        "changed"
    ) in lines
    kernel = _C.ProductKernel(ANY).name.lower()
    assert f"  %1 = poptorch_emu::pack_weight.out( %0 {kernel} %1 )  # convert " in lines
    assert "  %0 = %1 of prepare weight" in lines

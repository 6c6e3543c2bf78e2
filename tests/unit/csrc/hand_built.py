"""Short functions to build programs by hand in tests, without the compiler."""

from support.paths import set_freest_path

from poptorch_emu import _C
from poptorch_emu.report.profile_file import EventRow

MICRO_BATCH = _C.SegmentKind.MICRO_BATCH
WINDOW = _C.SegmentKind.WINDOW
ALL = _C.OutputMode.ALL
SUM = _C.OutputMode.SUM
Reg = _C.Register


def add(program, segment, operator, args, outputs, *, dies=(), debug=None, **kwargs):
    """Adds an instruction; `operator` is "add.Tensor" for `aten::add.Tensor`."""
    name, _, overload = operator.partition(".")
    debug = debug or _C.Debug(name)
    program.add_instruction(
        segment, f"aten::{name}", overload, args, kwargs, list(outputs), list(dies), debug
    )


# Whether executors follow the lists of actions even where they need not; see conftest.py.
FOLLOWS_LISTS = False


def executor(program, *, replicas=1, workers=1, groups=None, follows_lists=None):
    """Returns an executor of a valid program; by default each replica reads its own rows."""
    set_freest_path(program)
    program.validate()
    groups = groups or list(range(replicas))
    follows_lists = FOLLOWS_LISTS if follows_lists is None else follows_lists
    return _C.Executor(program, replicas, workers, 1, groups, follows_lists=follows_lists)


def take_events(engine):
    """Returns the events since the last call, ordered by their ends."""
    return [EventRow(*row) for row in engine.take_events().tolist()]


def one_segment(num_inputs=1, *, is_batched=True, num_micro_batches=1):
    """Returns a program and its only segment, with input k in register k."""
    program = _C.Program()
    segment = program.add_segment("only", 0, MICRO_BATCH)
    for index in range(num_inputs):
        program.load_input(segment, index, program.add_input(f"x{index}", is_batched))
    program.set_schedule([[(segment, m) for m in range(num_micro_batches)]], num_micro_batches)
    return program, segment


def call(operator, inputs, args, *, num_outputs=1, **kwargs):
    """Runs one operator on the engine; register k of `args` is input k."""
    program, segment = one_segment(len(inputs), is_batched=False)
    outputs = range(len(inputs), len(inputs) + num_outputs)
    add(program, segment, operator, args, outputs, **kwargs)
    for register in outputs:
        program.store_output(segment, register, ALL, 1)
    return executor(program).run(inputs, 1)


def pipeline(num_stages, num_micro_batches, *, capacity=1):
    """Returns a program in which each IPU doubles its input and adds its number."""
    program = _C.Program()
    segments = [program.add_segment(f"stage{i}", i, MICRO_BATCH) for i in range(num_stages)]
    program.load_input(segments[0], 0, program.add_input("x", True))
    for index, segment in enumerate(segments):
        if index > 0:
            program.add_link(segments[index - 1], [2], segment, [0], capacity)
        add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1], dies=[0])
        add(program, segment, "add.Tensor", [Reg(1), float(index)], [2], dies=[1])
    program.store_output(segments[-1], 2, ALL, 1)
    program.set_schedule(
        [[(s, m) for m in range(num_micro_batches)] for s in segments], num_micro_batches
    )
    return program


def calling_stages(operator, mode, num_micro_batches):
    """Returns a program of two stages that each call an operator, with a link between them."""
    program = _C.Program()
    first = program.add_segment("first", 0, MICRO_BATCH)
    second = program.add_segment("second", 1, MICRO_BATCH)
    program.load_input(first, 0, program.add_input("x", True))
    program.add_link(first, [1], second, [0], 1)
    for segment in (first, second):
        debug = _C.Debug(operator)
        program.add_instruction(
            segment, f"poptorch_emu::{operator}", "", [Reg(0)], {}, [1], [0], debug
        )
    program.store_output(second, 1, mode, 1)
    micro_batches = range(num_micro_batches)
    program.set_schedule(
        [[(segment, m) for m in micro_batches] for segment in (first, second)], num_micro_batches
    )
    return program

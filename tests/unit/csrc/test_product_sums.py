"""Products that are added to a sum as they are computed, in one order for any number of workers."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor, take_events
from support.processors import LIBRARY, PANELS, SMALL, needs_vectors

from poptorch_emu import _C
from poptorch_emu.errors import Error

IN_EACH_ORDER = True

ROWS, OUT, IN = 24, 160, 192
N, WINDOWS = 6, 3


def add_product(program, segment, left, right, accumulator, kernel=LIBRARY):
    """Adds the product of two registers to a sum."""
    args = [Reg(left), Reg(right), kernel, accumulator]
    debug = _C.Debug("product")
    program.add_instruction(segment, "poptorch_emu::add_product", "", args, {}, [], [], debug)


KERNELS = [
    pytest.param(LIBRARY, id="library"),
    pytest.param(SMALL, id="small", marks=needs_vectors),
    pytest.param(PANELS, id="panels", marks=needs_vectors),
]


def summing(
    *,
    kernel=LIBRARY,
    is_remote=False,
    replicas=1,
    num_products=1,
    fails=False,
    is_negated=False,
):
    """Returns a program that outputs the sum of dy.t() @ x over each window's N micro-batches."""
    program = _C.Program()
    segment = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("dy", True))
    program.load_input(segment, 1, program.add_input("x", True))
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, list(range(replicas)))
    reduction = program.add_segment("reduce", 0, WINDOW) if replicas > 1 else None
    add(program, segment, "t", [Reg(0)], [2])
    if is_negated:
        add(program, segment, "_neg_view", [Reg(1)], [3])
    for number in range(num_products):
        accumulator = program.add_accumulator(f"g{number}", torch.float32, False)
        if is_remote:
            program.set_remote_accumulator(accumulator)
        add_product(program, segment, 2, 3 if is_negated else 1, accumulator, kernel)
        if reduction is not None:
            program.reduce(reduction, accumulator)
        program.load_accumulator(update, number, accumulator)
        program.store_output(update, number, ALL, 1)
    if fails:
        add(program, segment, "linalg_cholesky", [Reg(1)], [3])
    if reduction is not None:
        program.set_runners(reduction, list(range(replicas)))
    window = [(update, 0)] if reduction is None else [(reduction, 0), (update, 0)]
    program.set_schedule([[*((segment, m) for m in range(N)), *window]], N)
    return program


def operands(replicas=1, rows=ROWS):
    count = N * WINDOWS * replicas * rows
    return [torch.randn(count, OUT), torch.randn(count, IN)]


def by_hand(dy, x, replicas=1, rows=ROWS):
    """Adds up products with plain PyTorch; rows belong to the replicas in turn."""
    sums = []
    for window in zip(dy.chunk(WINDOWS), x.chunk(WINDOWS), strict=True):
        of_replica = [torch.zeros(OUT, IN) for _ in range(replicas)]
        pairs = zip(*(part.split(rows) for part in window), strict=True)
        for index, (left, right) in enumerate(pairs):
            of_replica[index % replicas] += left.t() @ right
        sums.append(sum(of_replica))
    return torch.cat([each for each in sums for _ in range(replicas)])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rows", [ROWS, 300])
@pytest.mark.parametrize("is_remote", [False, True], ids=["on chip", "remote"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_sum_when_products_are_added_then_is_that_of_all(replicas, is_remote, rows, kernel):
    dy, x = operands(replicas, rows)
    program = summing(kernel=kernel, is_remote=is_remote, replicas=replicas)
    engine = executor(program, replicas=replicas)
    first, again = (engine.run([dy, x], WINDOWS)[0] for _ in range(2))
    torch.testing.assert_close(first, by_hand(dy, x, replicas, rows), rtol=1e-5, atol=1e-4)
    assert torch.equal(first, again)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sum_when_an_operand_is_a_negated_view_then_is_that_of_its_values(kernel):
    inputs = operands()
    expected, negated = (
        executor(summing(kernel=kernel, is_negated=is_negated)).run(inputs, WINDOWS)[0]
        for is_negated in (False, True)
    )
    assert torch.equal(negated, -expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rows", [ROWS, 300])
def test_sum_when_it_lives_in_streaming_memory_then_has_the_same_bits(rows, kernel):
    inputs = operands(rows=rows)
    on_chip, remote = (
        executor(summing(kernel=kernel, is_remote=is_remote)).run(inputs, WINDOWS)[0]
        for is_remote in (False, True)
    )
    assert torch.equal(on_chip, remote)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("workers", [2, 3])
def test_sums_when_micro_batches_overlap_then_have_the_bits_of_one_worker(workers, kernel):
    # Long enough for the engine to run several micro-batches at once.
    count = N * WINDOWS * 384
    inputs = [torch.randn(count, OUT), torch.randn(count, IN)]
    expected = executor(summing(kernel=kernel, num_products=4)).run(inputs, WINDOWS)
    engine = executor(summing(kernel=kernel, num_products=4), workers=workers, follows_lists=False)
    engine.set_tracing(True)
    for _ in range(10):
        sums = engine.run(inputs, WINDOWS)
        assert all(torch.equal(sum, other) for sum, other in zip(sums, expected, strict=True))
    events = [event for event in take_events(engine) if event.segment == 0]
    assert any(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a in events for b in events[:99]
               if a is not b)  # fmt: skip


def test_sum_when_somebody_keeps_it_then_stays_as_it_was():
    inputs = operands()
    engine = executor(summing())
    (kept,) = engine.run(inputs, WINDOWS)
    copy = kept.clone()
    engine.run([-tensor for tensor in operands()], WINDOWS)
    assert torch.equal(kept, copy)


@pytest.mark.parametrize("workers", [1, 3])
def test_call_when_an_action_fails_then_none_waits_and_the_next_call_is_whole(workers):
    program = summing(fails=True)
    # The matrices are positive definite, so that only the changed micro-batch fails.
    x = torch.eye(IN).repeat(N * WINDOWS, 1)
    dy = torch.randn(N * WINDOWS * IN, OUT)
    engine = executor(program, workers=workers)
    (expected,) = engine.run([dy, x], WINDOWS)
    bad = x.clone()
    bad[3 * IN : 4 * IN] *= -1
    for _ in range(5):
        with pytest.raises(Exception, match="cholesky"):
            engine.run([dy, bad], WINDOWS)
        assert torch.equal(engine.run([dy, x], WINDOWS)[0], expected)


def in_a_window(program, segment, accumulator):
    late = program.add_segment("late", 0, WINDOW)
    for register in (0, 1):
        program.load_accumulator(late, register, accumulator)
    add_product(program, late, 0, 1, accumulator)


def in_a_sharded_sum(program, segment, accumulator):
    program.shard_accumulator(accumulator)


def in_a_mean(program, segment, accumulator):
    add_product(program, segment, 2, 1, program.add_accumulator("m", torch.float32, True))


def in_half_precision(program, segment, accumulator):
    add_product(program, segment, 2, 1, program.add_accumulator("h", torch.float16, False))


def twice(program, segment, accumulator):
    add_product(program, segment, 2, 1, accumulator)


def in_no_sum(program, segment, accumulator):
    add_product(program, segment, 2, 1, 7)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (in_a_window, "whole float32 sum of a micro-batch segment only"),
        (in_a_sharded_sum, "'g0', which is possible for a whole float32 sum"),
        (in_a_mean, "'m', which is possible for a whole float32 sum"),
        (in_half_precision, "'h', which is possible for a whole float32 sum"),
        (twice, "'g0' is added to twice"),
        (in_no_sum, "names accumulator 7, but there are 1"),
    ],
)
def test_program_when_a_product_has_no_sum_to_go_to_then_is_refused(spoil, message):
    program = summing()
    spoil(program, 0, 0)
    with pytest.raises(Error, match=message):
        program.validate()


def test_program_when_a_loop_adds_a_product_then_is_refused():
    program = summing()
    body = _C.Body("body", 2, [0, 1], -1, [])
    args = [Reg(0), Reg(1), LIBRARY, 0]
    debug = _C.Debug("inner")
    body.add_instruction("poptorch_emu::add_product", "", args, {}, [], [], debug, [])
    program.add_instruction(
        0, "poptorch_emu::for_loop", "", ["body", 2, False, [], [], [Reg(2), Reg(1)], []], {}, [],
        [], _C.Debug("loop"), [body],
    )  # fmt: skip
    with pytest.raises(Error, match="'inner' in body 'body' uses a sum of gradients"):
        program.validate()


def test_text_when_a_product_is_added_then_names_its_sum():
    assert "accumulator g0 += poptorch_emu::add_product( %2 %1 library )" in summing().text()

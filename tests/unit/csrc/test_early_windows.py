"""Updates that begin while micro-batches are under way in segments of other weights.

`fast` on IPU 0 and `slow` on IPU 1 add their inputs to sums; each has an update of its own.
"""

from __future__ import annotations

import signal

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C

FLOAT = torch.float32
MICRO_BATCHES = 3
FAST, SLOW, UPDATE_OF_FAST, UPDATE_OF_SLOW = range(4)


def program_of(
    *,
    may_fail: bool = False,
    is_variable_read: bool = False,
    is_output_given: bool = False,
    checks: bool = False,
    overwrites: bool = False,
    num_products: int = 0,
    looks_up: int = 0,
    adds_rows: bool = False,
):
    """Returns the program.

    Args:
        may_fail: whether `slow` has an operator that fails with some values.
        is_variable_read: whether `slow` reads the weight of the other IPU.
        is_output_given: whether `slow` gives an output.
        checks: whether floating-point exceptions are errors.
        overwrites: whether updates change weights in their place.
        num_products: of large matrices, which `slow` computes as well.
        looks_up: of how many rows `fast` looks up some, by the numbers of one more input.
        adds_rows: whether `slow` adds gradients to three rows with such numbers.
    """
    program = _C.Program()
    weights = [program.add_variable(f"w{ipu}", [2], FLOAT, False) for ipu in range(2)]
    sums = [program.add_accumulator(f"g{ipu}", FLOAT, False) for ipu in range(2)]
    for ipu, name in enumerate(("fast", "slow")):
        segment = program.add_segment(name, ipu, MICRO_BATCH)
        program.load_input(segment, 0, program.add_input(f"x{ipu}", True))
        add(program, segment, "mul.Tensor", [Reg(0), Reg(0)], [1])
        add(program, segment, "sum.dim_IntList", [Reg(1), [0]], [2])
        program.accumulate(segment, 2, sums[ipu])
    if may_fail:
        add(program, SLOW, "floor_divide", [Reg(0), Reg(0)], [3])
    if num_products:
        program.load_constant(SLOW, 3, program.add_constant(torch.eye(256)))
    for number in range(num_products):
        add(program, SLOW, "mm", [Reg(3), Reg(3)], [4 + number])
    if looks_up or adds_rows:
        numbers = program.add_input("numbers", True)
    if looks_up:
        table = program.add_variable("table", [looks_up, 2], FLOAT, False)
        program.load_variable(FAST, 3, table)
        program.load_input(FAST, 4, numbers)
        add(program, FAST, "embedding", [Reg(3), Reg(4)], [5])
    if adds_rows:
        program.load_input(SLOW, 3, numbers)
        rows = program.add_accumulator("rows", FLOAT, False)
        program.accumulate_rows(SLOW, 1, rows, 3, 3, -1)
    if is_variable_read:
        program.load_variable(SLOW, 3, weights[0])
    if is_output_given:
        program.store_output(SLOW, 1, ALL, 1)
    for ipu in range(2):
        update = program.add_segment(f"update {ipu}", ipu, WINDOW)
        program.load_variable(update, 0, weights[ipu])
        program.load_accumulator(update, 1, sums[ipu])
        operator = "add_.Tensor" if overwrites else "add.Tensor"
        add(program, update, operator, [Reg(0), Reg(1)], [2])
        program.store_variable(update, 2, weights[ipu])
    rows = [
        [(segment, m) for m in range(MICRO_BATCHES)] + [(segment + 2, 0)]
        for segment in (FAST, SLOW)
    ]
    program.set_schedule(rows, MICRO_BATCHES)
    if checks:
        program.set_numerics(True, False)
    return program


def order_of(
    engine: _C.Executor, num_windows: int = 3, numbers: torch.Tensor | None = None
) -> list[list[int]]:
    """Returns the segments in the order in which they began, by window, and checks the weights."""
    x = [torch.arange(num_windows * MICRO_BATCHES * 2.0).reshape(-1, 2) + ipu for ipu in range(2)]
    before = [engine.read_variable(ipu, 0) for ipu in range(2)]
    engine.set_tracing(True)
    engine.run(x if numbers is None else [*x, numbers], num_windows)
    events = sorted(engine.take_events(), key=lambda event: event.start_ns)
    for ipu in range(2):
        after = before[ipu] + (x[ipu] * x[ipu]).sum(0)
        torch.testing.assert_close(engine.read_variable(ipu, 0), after)
    return [[e.segment for e in events if e.window == window] for window in range(num_windows)]


def begins_early(order: list[int]) -> bool:
    """Returns whether the first update began before the last micro-batch of the other IPU."""
    last = max(place for place, segment in enumerate(order) if segment == SLOW)
    return order.index(UPDATE_OF_FAST) < last


def test_update_when_its_own_gradients_are_complete_then_begins() -> None:
    first, *others = order_of(executor(program_of(), follows_lists=True))
    assert not begins_early(first), "memory is planned in the first window"
    assert all(map(begins_early, others))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("follows_lists", [True, False])
def test_update_when_begun_early_then_has_the_same_results(
    workers: int, follows_lists: bool
) -> None:
    results = []
    for may_fail in (False, True):
        engine = executor(
            program_of(may_fail=may_fail),
            workers=workers,
            follows_lists=follows_lists,
        )
        for ipu in range(2):
            engine.write_variable(ipu, 0, torch.tensor([1.0, -2.0]))
        x = torch.randn(30 * MICRO_BATCHES, 2, generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            engine.run([x, x], 30)
        results.append([engine.read_variable(ipu, 0) for ipu in range(2)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("reason", ["may_fail", "is_variable_read", "is_output_given", "checks"])
def test_update_when_another_segment_reads_its_weight_or_may_fail_then_waits(reason: str) -> None:
    engine = executor(program_of(**{reason: True}), follows_lists=True)
    assert not any(map(begins_early, order_of(engine)))


@pytest.mark.parametrize(("looks_up", "is_early"), [(3, True), (2, True), (4, False), (0, False)])
def test_update_when_rows_are_added_then_waits_unless_their_numbers_were_looked_up(
    looks_up: int, is_early: bool
) -> None:
    engine = executor(program_of(looks_up=looks_up, adds_rows=True), follows_lists=True)
    orders = order_of(engine, numbers=torch.tensor([0, 1] * 5)[: 3 * MICRO_BATCHES])
    assert [begins_early(order) for order in orders[1:]] == [is_early] * 2


# What a segment makes of a weight before it sends it on: operator, arguments behind the tensor.
SENT = {
    "the weight": [],
    "a view": [("expand", [[1, 2]])],
    "a view of a view": [("expand", [[1, 2]]), ("transpose.int", [0, 1])],
    "a view without saying so": [("_unsafe_view", [[1, 2]])],
    "what was contiguous already": [("contiguous", [])],
    "a copy": [("clone", [])],
    "a view of a copy": [("clone", []), ("expand", [[1, 2]])],
}


def sending_program(changes: list[tuple[str, list]], num_hops: int):
    """Returns a program whose IPU 0 sends on its weight, which its update changes in its place.

    The weight goes over `num_hops` links, and the last IPU adds up what comes.
    """
    program = _C.Program()
    weight, total = (program.add_variable(name, [2], FLOAT, False) for name in ("w", "total"))
    gradient, sum_of_sent = (program.add_accumulator(name, FLOAT, False) for name in ("g", "sum"))
    stages = [program.add_segment(f"stage {i}", i, MICRO_BATCH) for i in range(num_hops + 1)]
    program.load_input(stages[0], 0, program.add_input("x", True))
    program.load_variable(stages[0], 1, weight)
    for number, (operator, arguments) in enumerate(changes):
        add(program, stages[0], operator, [Reg(1 + number), *arguments], [2 + number])
    add(program, stages[0], "sum.dim_IntList", [Reg(0), [0]], [9])
    program.accumulate(stages[0], 9, gradient)
    sent = 1 + len(changes)
    for giver, taker in zip(stages, stages[1:], strict=False):
        program.add_link(giver, [sent], taker, [0], MICRO_BATCHES)
        sent = 0
    add(program, stages[-1], "mul.Tensor", [Reg(0), 1.0], [1])
    add(program, stages[-1], "squeeze", [Reg(1)], [2])
    program.accumulate(stages[-1], 2, sum_of_sent)
    rows = [[(stage, m) for m in range(MICRO_BATCHES)] for stage in stages]
    for ipu, variable, summed in ((0, weight, gradient), (num_hops, total, sum_of_sent)):
        update = program.add_segment(f"update {ipu}", ipu, WINDOW)
        program.load_variable(update, 0, variable)
        program.load_accumulator(update, 1, summed)
        add(program, update, "add_.Tensor", [Reg(0), Reg(1)], [2])
        program.store_variable(update, 2, variable)
        rows[ipu].append((update, 0))
    program.set_schedule(rows, MICRO_BATCHES)
    return program


@pytest.mark.parametrize("num_hops", [1, 2])
@pytest.mark.parametrize("sent", SENT)
def test_update_when_a_link_brings_its_weight_elsewhere_then_waits_for_who_reads_it(
    sent: str, num_hops: int
) -> None:
    num_windows = 4
    engine = executor(sending_program(SENT[sent], num_hops), follows_lists=True)
    engine.set_tracing(True)
    engine.run([torch.ones(num_windows * MICRO_BATCHES, 2)], num_windows)
    # The weight is 0 in the first window, and grows by the inputs of each.
    read = sum(MICRO_BATCHES * window * MICRO_BATCHES for window in range(num_windows))
    assert engine.read_variable(1, 0).tolist() == [read] * 2
    update, last = num_hops + 1, num_hops
    events = sorted(engine.take_events(), key=lambda event: event.start_ns)
    order = [event.segment for event in events if event.window == num_windows - 1]
    ends = max(place for place, segment in enumerate(order) if segment == last)
    assert (order.index(update) < ends) == ("copy" in sent)


def test_call_when_a_later_micro_batch_fails_then_no_weight_is_changed() -> None:
    program = program_of()
    add(program, SLOW, "multinomial", [Reg(0), 1, True], [3])
    engine = executor(program, follows_lists=True)
    x = torch.ones(3 * MICRO_BATCHES, 2)
    engine.run([x, x], 3)
    before = [engine.read_variable(ipu, 0) for ipu in range(2)]
    wrong = x[:MICRO_BATCHES].clone()
    wrong[-1] = -1.0
    with pytest.raises(Exception, match="multinomial"):
        engine.run([x[:MICRO_BATCHES], wrong], 1)
    assert all(map(torch.equal, before, [engine.read_variable(ipu, 0) for ipu in range(2)]))


class HandlerError(Exception):
    """Raised by a signal's handler."""


def interrupt(*_: object) -> None:
    raise HandlerError


def test_call_when_interrupted_after_an_early_update_then_ends_with_its_window() -> None:
    program = program_of(overwrites=True, num_products=40)
    engine = executor(program, follows_lists=True)
    engine.look_for_signals()
    num_windows = 2000
    x = torch.ones(num_windows * MICRO_BATCHES, 2)
    engine.run([x[:MICRO_BATCHES], x[:MICRO_BATCHES]], 1)
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(10):
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.003 * number)
            with pytest.raises(HandlerError):
                engine.run([x, x], num_windows)
            # Each window adds the same to both weights.
            first, second = (engine.read_variable(ipu, 0) for ipu in range(2))
            assert torch.equal(first, second) and first[0] % MICRO_BATCHES == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)

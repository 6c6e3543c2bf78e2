"""Summands that come before their turn: waiting workers, and the bits of the sums."""

import random
import threading
import time
from itertools import product

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor
from support import processors

from poptorch_emu import _C

N, WINDOWS, ROWS, TABLE = 12, 4, 8, 40
SMALL, LARGE = 64, 2304  # Numbers in a row; 8 rows of the larger size are too many to keep.
HUGE = 24_000  # With this width, a window has too many rows to keep until its end.
MOST_KEPT = 4  # Largest number of kept summands of one sum.
KINDS = ["value", "vector", "rows", "equal rows", "product", "product and sums"]
FEW_NUMBERS = ["vector", "equal rows"]  # Kinds with few numbers for any width.
SINGLE_ROWS = ["rows", "equal rows"]  # Kinds that are kept until the window ends.
ORDERED = [kind for kind in KINDS if kind not in SINGLE_ROWS]

HOLD = {}


@pytest.fixture(scope="module", autouse=True)
def _operator():
    library = torch.library.Library("poptorch_emu", "FRAGMENT")
    library.define("test_hold(Tensor x) -> Tensor")
    library.impl("test_hold", lambda x: HOLD["function"](x), "CPU")
    yield
    library._destroy()


def program_of(*kinds, width=SMALL, dtype=torch.float32):
    """Returns a program that adds up each kind of summand, after a slow stage."""
    program = _C.Program()
    segment = program.add_segment("backward", 0, MICRO_BATCH)
    update = program.add_segment("update", 0, WINDOW)
    program.load_input(segment, 0, program.add_input("x", True))
    program.load_input(segment, 1, program.add_input("places", True))
    debug = _C.Debug("hold")
    program.add_instruction(segment, "poptorch_emu::test_hold", "", [Reg(0)], {}, [2], [], debug)
    add(program, segment, "t", [Reg(2)], [3])
    add(program, segment, "sum.dim_IntList", [Reg(2), [0]], [6])
    for number, kind in enumerate(kinds):
        accumulator = program.add_accumulator(kind, dtype, False)
        if kind == "product":
            args = [Reg(3), Reg(2), processors.ANY, accumulator]
            debug = _C.Debug("product")
            program.add_instruction(
                segment, "poptorch_emu::add_product", "", args, {}, [], [], debug
            )
        elif kind == "product and sums":
            args = [Reg(3), Reg(2), processors.ANY, accumulator]
            program.add_instruction(
                segment, "poptorch_emu::add_product", "with_sums", args, {}, [5], [], debug
            )
            program.store_output(segment, 5, ALL, 1)
        elif kind == "equal rows":
            add(program, segment, "expand", [Reg(6), [ROWS, width]], [7])
            program.accumulate_rows(segment, 7, accumulator, 1, TABLE, 0)
        elif kind == "rows":
            program.accumulate_rows(segment, 2, accumulator, 1, TABLE, 0)
        else:
            program.accumulate(segment, {"value": 2, "vector": 6}[kind], accumulator)
        program.load_accumulator(update, 2 * number, accumulator)
        add(program, update, "clone", [Reg(2 * number)], [2 * number + 1])
        program.store_output(update, 2 * number + 1, ALL, 1)
    program.set_schedule([[*((segment, m) for m in range(N)), (update, 0)]], N)
    return program


def inputs(width):
    """Returns rows that begin with the number of their micro-batch, and indices into a table."""
    count = N * WINDOWS
    x = torch.randn(count * ROWS, width)
    x.view(count, ROWS, width)[:, 0, 0] = torch.arange(count)
    return [x, torch.randint(0, TABLE, (count * ROWS,))]


def run(program, tensors, workers, hold):
    """Returns the outputs of a call whose micro-batches are delayed by `hold`."""
    HOLD["function"] = lambda x: (hold(int(x[0, 0])), x.clone())[1]
    return executor(program, workers=workers, follows_lists=False).run(tensors, WINDOWS)


def sums_by_hand(kind, x, places):
    """Adds up the summands of each window's micro-batches with plain PyTorch."""
    sums = []
    pairs = list(zip(x.split(ROWS), places.split(ROWS), strict=True))
    for window in range(WINDOWS):
        sum_ = torch.zeros(())
        for rows, place in pairs[window * N : (window + 1) * N]:
            spread = rows.sum(0).expand(rows.shape) if kind == "equal rows" else rows
            dense = torch.zeros(TABLE, rows.shape[1]).index_add(0, place, spread)
            dense[0] = 0
            sum_ = sum_ + {"value": rows, "vector": rows.sum(0)}.get(kind, dense)
        sums.append(sum_)
    return torch.cat(sums)


@pytest.mark.parametrize(
    ("kind", "width"), [*product(KINDS, [SMALL, LARGE]), *product(SINGLE_ROWS, [HUGE])]
)
def test_sum_when_micro_batches_are_late_then_has_the_bits_of_their_order(kind, width):
    program, tensors = program_of(kind, width=width), inputs(width)
    expected = run(program, tensors, 1, lambda _: None)
    if not kind.startswith("product"):
        assert torch.equal(expected[0], sums_by_hand(kind, *tensors))
    chance = random.Random(0)
    for workers in (2, 3, 5):
        found = run(program, tensors, workers, lambda _: time.sleep(chance.random() / 500))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_sums_of_all_kinds_when_micro_batches_are_late_then_have_the_bits_of_their_order():
    program, tensors = program_of(*KINDS), inputs(SMALL)
    expected = run(program, tensors, 1, lambda _: None)
    chance = random.Random(0)
    for _ in range(5):
        found = run(program, tensors, 4, lambda _: time.sleep(chance.random() / 500))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("kind", "width", "dtype", "last"),
    [
        *((kind, SMALL, torch.float32, MOST_KEPT + 1) for kind in ORDERED),
        *((kind, LARGE, torch.float32, 1) for kind in ORDERED if kind not in FEW_NUMBERS),
        *((kind, LARGE, torch.float32, MOST_KEPT + 1) for kind in ORDERED if kind in FEW_NUMBERS),
        *((kind, width, torch.float32, N - 1) for kind in SINGLE_ROWS for width in (SMALL, LARGE)),
        ("rows", HUGE, torch.float32, 1),
        ("vector", SMALL, torch.float16, 1),  # Each addition rounds, perhaps stochastically.
    ],
)
def test_worker_when_another_is_slow_then_goes_on_as_far_as_summands_are_kept(
    kind, width, dtype, last
):
    if kind.startswith("product") and _C.vector_width() == 0:
        last = 1  # Only our kernel, which needs vectors, keeps these.
    for awaited, passes in [(last, True), (last + 1, False)]:
        is_there, seen = threading.Event(), []

        def hold(number, awaited=awaited, passes=passes, is_there=is_there, seen=seen):
            if number == awaited:
                is_there.set()
            elif number == 0:
                seen.append(is_there.wait(20 if passes else 0.3))

        tensors = inputs(width)
        run(program_of(kind, width=width, dtype=dtype), tensors, 2, hold)
        assert seen == [passes]


def test_call_when_one_fails_while_summands_are_kept_then_the_next_call_is_whole():
    kinds = ["vector", "rows", "product"][: 3 if _C.vector_width() > 0 else 2]
    program, tensors = program_of(*kinds), inputs(SMALL)
    engine = executor(program, workers=2, follows_lists=False)
    is_last_kept = threading.Event()

    def fail(number):
        if number == MOST_KEPT:
            is_last_kept.set()
        elif number == 0:
            assert is_last_kept.wait(20)
            raise RuntimeError("a failure")

    HOLD["function"] = lambda x: (fail(int(x[0, 0])), x.clone())[1]
    with pytest.raises(Exception, match="a failure"):
        engine.run(tensors, WINDOWS)
    expected = run(program, tensors, 1, lambda _: None)
    HOLD["function"] = torch.clone
    found = engine.run(tensors, WINDOWS)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

"""Workers that share nothing: who is fast waits for nobody, and each has memory of its own."""

import threading
import time

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, Reg, executor

from poptorch_emu import _C

N = 8
SUM = _C.OutputMode.SUM
# Tensors of this size come from the engine's pool.
WIDTH = 8192


@pytest.fixture(scope="module")
def library():
    # Operators of a user keep the order of the lists; those of the engine need not.
    library = torch.library.Library("poptorch_emu", "FRAGMENT")
    library.define("test_gate(Tensor x) -> Tensor")
    library.define("test_notes(Tensor x) -> Tensor")
    yield library
    library._destroy()


def two_stages(operator, mode, num_micro_batches=N):
    """Returns a program whose stages each call `operator`, with a link between them."""
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


class Gate:
    """Holds the first micro-batch, which is all 0, until another one is in its second stage."""

    def __init__(self, awaited):
        self.awaited = awaited
        self.is_open = threading.Event()
        self.calls = []
        self.was_open = None

    def __call__(self, x):
        number = int(x[0])
        if number == 0 and not self.calls.count(0):
            self.calls.append(0)
            self.was_open = self.is_open.wait(timeout=2)
        else:
            self.calls.append(number)
        if number == self.awaited and self.calls.count(number) == 2:
            self.is_open.set()
        return x.clone()


GATES = []


@pytest.fixture(scope="module")
def _gates(library):
    library.impl("test_gate", lambda x: GATES[-1](x), "CPU")


@pytest.mark.usefixtures("_gates")
@pytest.mark.parametrize(
    ("mode", "awaited", "passes"),
    [(ALL, N - 2, True), (ALL, N - 1, False), (SUM, 1, True), (SUM, 2, False)],
    ids=["outputs", "last-of-window", "sum-of-one", "sum-of-two"],
)
def test_micro_batches_wait_for_a_slow_one_only_where_their_order_shows(mode, awaited, passes):
    x = torch.arange(float(N))
    GATES.append(Gate(awaited))
    engine = executor(two_stages("test_gate", mode), workers=2, follows_lists=False)
    (result,) = engine.run([x], 1)
    # What holds the first one is given up after 2 seconds.
    assert GATES[-1].was_open is passes
    assert torch.equal(result, x if mode == ALL else x.sum()[None])
    assert sorted(GATES[-1].calls) == sorted([*range(N), *range(N)])


@pytest.mark.usefixtures("_gates")
def test_a_stream_hands_out_steps_in_their_order_when_they_end_in_another():
    x = torch.arange(float(N))
    GATES.append(Gate(N - 2))
    engine = executor(two_stages("test_gate", ALL), workers=2, follows_lists=False)
    engine.begin_stream(max_unread=N, micro_batches_per_step=1, num_outputs=1)
    engine.run([x], 1)
    assert GATES[-1].was_open
    assert [int(engine.take_result()[0]) for _ in range(N)] == list(range(N))
    engine.end_stream()


def test_the_memory_of_what_crosses_stages_stays_with_a_worker(library):
    places = {}

    def note(x):
        # Long enough to be worth a second worker.
        time.sleep(0.001)
        y = x.clone()
        places.setdefault(threading.get_ident(), set()).add(y.data_ptr())
        return y

    library.impl("test_notes", note, "CPU")
    count = 16
    engine = executor(two_stages("test_notes", SUM, count), workers=2, follows_lists=False)
    x = torch.randn(count * WIDTH)
    for _ in range(3):
        places.clear()
        engine.run([x], 1)
    first, second = places.values()
    assert first.isdisjoint(second)

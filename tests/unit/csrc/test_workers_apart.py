"""Workers that share nothing, so that a fast one waits for no other."""

import threading

import pytest
import torch
from hand_built import ALL, SUM, calling_stages, executor

N = 8


class Gate:
    """Holds the first micro-batch, which is all 0, until another one is in its second stage.

    The gate opens after a while, earlier if the other micro-batch must wait for the first one.
    """

    def __init__(self, awaited, opens=True):
        self.awaited = awaited
        self.limit_seconds = 30 if opens else 0.5
        self.is_open = threading.Event()
        self.calls = []
        self.was_open = None

    def __call__(self, x):
        number = int(x[0])
        if number == 0 and not self.calls.count(0):
            self.calls.append(0)
            self.was_open = self.is_open.wait(timeout=self.limit_seconds)
        else:
            self.calls.append(number)
        if number == self.awaited and self.calls.count(number) == 2:
            self.is_open.set()
        return x.clone()


GATES = []


@pytest.fixture(scope="module", autouse=True)
def _operator():
    # Programs with a user's operators follow the order of the lists; the engine's own need not.
    library = torch.library.Library("poptorch_emu", "FRAGMENT")
    library.define("test_gate(Tensor x) -> Tensor")
    library.impl("test_gate", lambda x: GATES[-1](x), "CPU")
    yield
    library._destroy()


@pytest.mark.parametrize(
    ("mode", "awaited", "passes"),
    [(ALL, N - 2, True), (ALL, N - 1, True), (SUM, 1, True), (SUM, 2, False)],
    ids=["outputs", "last-of-window", "sum-of-one", "sum-of-two"],
)
def test_micro_batches_wait_for_a_slow_one_only_where_their_order_shows(mode, awaited, passes):
    x = torch.arange(float(N))
    GATES.append(Gate(awaited, passes))
    engine = executor(calling_stages("test_gate", mode, N), workers=2, follows_lists=False)
    (result,) = engine.run([x], 1)
    assert GATES[-1].was_open is passes
    assert torch.equal(result, x if mode == ALL else x.sum()[None])
    assert sorted(GATES[-1].calls) == sorted([*range(N), *range(N)])


def test_a_stream_pauses_the_others_when_a_worker_is_slow():
    x = torch.arange(float(N))
    GATES.append(Gate(2, opens=False))
    engine = executor(calling_stages("test_gate", ALL, N), workers=2, follows_lists=False)
    engine.begin_stream(max_unread=1, micro_batches_per_step=1, num_outputs=1)
    thread = threading.Thread(target=engine.run, args=([x], 1))
    thread.start()
    assert [int(engine.take_result()[0]) for _ in range(N)] == list(range(N))
    thread.join()
    assert not GATES[-1].was_open
    engine.end_stream()


def test_a_stream_hands_out_steps_in_their_order_when_they_end_in_another():
    x = torch.arange(float(N))
    GATES.append(Gate(N - 2))
    engine = executor(calling_stages("test_gate", ALL, N), workers=2, follows_lists=False)
    engine.begin_stream(max_unread=N, micro_batches_per_step=1, num_outputs=1)
    engine.run([x], 1)
    assert GATES[-1].was_open
    assert [int(engine.take_result()[0]) for _ in range(N)] == list(range(N))
    engine.end_stream()

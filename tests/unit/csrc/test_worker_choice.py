"""Whether all workers run a window or one alone, chosen from windows whose times the test makes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu import _C

ACTION = 20_000  # ns
WINDOW = 32 * ACTION


def run(choice, window_ns, num_windows, action_ns=ACTION):
    """Notes windows that take `window_ns(is_alone)`; returns how many ran alone, and the sum."""
    num_alone, total = 0, 0
    for _ in range(num_windows):
        num_alone += choice.is_alone()
        elapsed = window_ns(choice.is_alone())
        total += elapsed
        choice.note(int(elapsed), action_ns)
    return num_alone, total


@pytest.mark.parametrize(
    ("has_choice", "action_ns"), [(False, 10_000), (True, 150_000), (True, 2_000_000)]
)
def test_all_work_where_there_is_no_choice_or_actions_are_long(has_choice, action_ns):
    choice = _C.WorkerChoice(has_choice)
    assert run(choice, lambda is_alone: WINDOW, 2000, action_ns)[0] == 0


def test_one_works_alone_where_that_is_faster_and_all_do_where_they_are():
    alone, _ = run(_C.WorkerChoice(True), lambda is_alone: WINDOW * (1 if is_alone else 1.5), 1000)
    assert alone > 950
    alone, _ = run(_C.WorkerChoice(True), lambda is_alone: WINDOW * (1.5 if is_alone else 1), 1000)
    assert 0 < alone < 50


def test_the_choice_follows_what_changes():
    choice = _C.WorkerChoice(True)
    run(choice, lambda is_alone: WINDOW * (1 if is_alone else 1.5), 5000)
    assert choice.is_alone()
    run(choice, lambda is_alone: WINDOW * (2.5 if is_alone else 1.5), 2000)
    alone, _ = run(choice, lambda is_alone: WINDOW * (2.5 if is_alone else 1.5), 500)
    assert alone < 50


@given(ratio=st.floats(0.5, 2), noise=st.floats(0, 0.3), seed=st.integers(0, 2**32))
def test_it_never_takes_much_longer_than_the_better_way(ratio, noise, seed):
    rng = random.Random(seed)

    def window_ns(is_alone):
        return WINDOW * (ratio if is_alone else 1) * (1 + rng.uniform(0, noise))

    _, total = run(_C.WorkerChoice(True), window_ns, 3000)
    best = 3000 * WINDOW * min(1, ratio) * (1 + noise / 2)
    assert total < (1.05 + noise / 2) * best

"""The choice to run windows on all cores or on one, from durations that the test invents."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu import _C

ACTION = 20_000  # nanoseconds
WINDOW = 32 * ACTION
LONG_ACTION = 5_000_000
LONG_WINDOW = 3 * LONG_ACTION
AMONG = _C.ChoiceAmong


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
    ("among", "action_ns"),
    [(AMONG.NOTHING, 10_000), (AMONG.SHORT_ACTIONS, 150_000), (AMONG.SHORT_ACTIONS, 2_000_000)],
)
def test_all_work_where_there_is_no_choice_or_actions_are_long(among, action_ns):
    choice = _C.WorkerChoice(among)
    assert run(choice, lambda is_alone: WINDOW, 2000, action_ns)[0] == 0


@pytest.mark.parametrize("among", [AMONG.SHORT_ACTIONS, AMONG.ALL_ACTIONS])
def test_one_works_alone_where_that_is_faster_and_all_do_where_they_are(among):
    alone, _ = run(_C.WorkerChoice(among), lambda is_alone: WINDOW * (1 if is_alone else 1.5), 1000)
    assert alone > 920
    alone, _ = run(_C.WorkerChoice(among), lambda is_alone: WINDOW * (1.5 if is_alone else 1), 1000)
    assert 0 < alone < 50


@pytest.mark.parametrize("among", [AMONG.SHORT_ACTIONS, AMONG.ALL_ACTIONS])
def test_the_choice_follows_what_changes(among):
    choice = _C.WorkerChoice(among)
    run(choice, lambda is_alone: WINDOW * (1 if is_alone else 1.5), 5000)
    assert choice.is_alone()
    run(choice, lambda is_alone: WINDOW * (2.5 if is_alone else 1.5), 2000)
    alone, _ = run(choice, lambda is_alone: WINDOW * (2.5 if is_alone else 1.5), 500)
    assert alone < 50


def quiet(is_alone):
    """A machine on which two threads nearly halve the time of a window."""
    return LONG_WINDOW * (1 if is_alone else 0.55)


def beside_a_neighbour(is_alone):
    """A machine with one free core, so that two threads wait for the thread without a core."""
    return LONG_WINDOW * (1 if is_alone else 4)


def test_trials_of_long_windows_when_all_cores_are_quiet_then_cost_little():
    choice = _C.WorkerChoice(AMONG.ALL_ACTIONS)
    _, total = run(choice, quiet, 400, LONG_ACTION)
    assert total < 1.02 * 400 * quiet(is_alone=False)


def test_a_neighbour_when_it_comes_then_is_noticed_within_a_few_windows_and_misses_are_few():
    choice = _C.WorkerChoice(AMONG.ALL_ACTIONS)
    run(choice, quiet, 400, LONG_ACTION)
    alone, _ = run(choice, beside_a_neighbour, 10, LONG_ACTION)
    assert alone >= 4
    _, total = run(choice, beside_a_neighbour, 400, LONG_ACTION)
    assert total < 1.06 * 400 * beside_a_neighbour(is_alone=True)


def test_a_neighbour_when_it_leaves_then_is_noticed_within_some_seconds():
    choice = _C.WorkerChoice(AMONG.ALL_ACTIONS)
    run(choice, beside_a_neighbour, 2000, LONG_ACTION)
    assert choice.is_alone()
    run(choice, quiet, 3_000_000_000 // LONG_WINDOW, LONG_ACTION)
    alone, _ = run(choice, quiet, 50, LONG_ACTION)
    assert alone < 10


def about_to_try_all():
    """Returns a choice of one worker that is about to try all."""
    choice = _C.WorkerChoice(AMONG.SHORT_ACTIONS)
    run(choice, lambda is_alone: WINDOW * (1 if is_alone else 1.5), 100)
    while choice.is_alone():
        run(choice, lambda is_alone: WINDOW, 1)
    return choice


def test_the_first_windows_of_a_trial_when_a_core_has_slept_then_do_not_decide():
    choice = about_to_try_all()
    slow = iter([3, 1.1])
    run(choice, lambda is_alone: WINDOW * next(slow), 2)
    alone, _ = run(choice, lambda is_alone: WINDOW * (1 if is_alone else 0.6), 50)
    assert alone < 15


def test_a_core_that_is_slow_for_long_after_it_slept_then_is_waited_for():
    choice = _C.WorkerChoice(AMONG.SHORT_ACTIONS)
    asleep = awake = 0

    def window_ns(is_alone):
        nonlocal asleep, awake
        asleep = asleep + 1 if is_alone else 0
        awake = 0 if asleep > 10 else awake + 1
        return WINDOW * (1 if is_alone else 1.3 if awake < 40 else 0.6)

    run(choice, window_ns, 16)
    awake = 0  # Other work has run meanwhile.
    run(choice, window_ns, 2000)
    alone, _ = run(choice, window_ns, 1000)
    assert alone < 50


def test_a_trial_that_takes_much_longer_then_ends_soon():
    choice = about_to_try_all()
    alone, _ = run(choice, lambda is_alone: WINDOW * (1 if is_alone else 3), 50)
    assert alone >= 47


def test_a_window_that_was_short_by_luck_in_a_trial_then_does_not_decide():
    choice = _C.WorkerChoice(AMONG.ALL_ACTIONS)
    run(choice, beside_a_neighbour, 100, LONG_ACTION)
    luck = iter([0.9, 0.5, 1.3])
    while choice.is_alone():
        run(choice, beside_a_neighbour, 1, LONG_ACTION)
    run(choice, lambda is_alone: LONG_WINDOW * next(luck), 3, LONG_ACTION)
    run(choice, beside_a_neighbour, 1, LONG_ACTION)
    assert choice.is_alone()


@given(
    ratio=st.floats(0.5, 2),
    noise=st.floats(0, 0.3),
    seed=st.integers(0, 2**32),
    among=st.sampled_from([AMONG.SHORT_ACTIONS, AMONG.ALL_ACTIONS]),
)
def test_it_never_takes_much_longer_than_the_better_way(ratio, noise, seed, among):
    rng = random.Random(seed)

    def window_ns(is_alone):
        return WINDOW * (ratio if is_alone else 1) * (1 + rng.uniform(0, noise))

    _, total = run(_C.WorkerChoice(among), window_ns, 3000)
    best = 3000 * WINDOW * min(1, ratio) * (1 + noise / 2)
    assert total < (1.05 + noise / 2) * best

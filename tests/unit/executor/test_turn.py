"""Turns: who waits for whom."""

import copy
import threading

import pytest

from poptorch_emu.executor.turn import Turn, one_at_a_time

pytestmark = pytest.mark.feature("PoplarExecutor", fidelity="exact")


class Owner:
    """Has a turn, and counts who was in its method at once."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.num_inside = self.most_inside = 0

    @one_at_a_time
    def use(self, then=lambda: None) -> None:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        then()
        self.num_inside -= 1


def is_free(turn: Turn) -> bool:
    """Returns whether another thread could take the turn now."""
    found = []

    def ask():
        found.append(turn.lock.acquire(blocking=False))
        if found[0]:
            turn.lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def test_method_when_inside_then_others_wait_and_the_same_thread_does_not():
    owner = Owner(Turn())
    seen = []
    owner.use(lambda: (seen.append(is_free(owner.turn)), owner.use()))
    assert seen == [False]
    assert owner.most_inside == 2 and is_free(owner.turn)


def test_turns_when_shared_then_one_waits_for_the_other():
    one, two, alone = Owner(Turn()), Owner(Turn()), Turn()
    seen = []

    def look():
        seen.append((is_free(two.turn), is_free(alone)))

    one.use(look)
    one.turn.share()
    two.turn.share()
    one.use(look)
    assert seen == [(True, True), (False, True)]


def test_turn_when_shared_inside_then_the_old_one_is_given_back():
    owner = Owner(Turn())
    before = owner.turn.lock
    owner.use(owner.turn.share)
    assert owner.turn.lock is not before
    assert is_free(owner.turn)
    thread = threading.Thread(target=lambda: before.acquire(timeout=1) and before.release())
    thread.start()
    thread.join()
    assert before.acquire(blocking=False)
    before.release()


def test_copy_then_has_a_turn_of_its_own():
    owner = Owner(Turn())
    owner.turn.share()
    duplicate = copy.deepcopy(owner)
    owner.use(lambda: duplicate.use())
    assert duplicate.turn.lock is not owner.turn.lock

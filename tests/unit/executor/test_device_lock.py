"""The lock of a device makes threads wait for each other."""

import copy
import threading

import pytest

from poptorch_emu.executor.device_lock import DeviceLock, one_at_a_time

pytestmark = pytest.mark.feature("PoplarExecutor", fidelity="exact")


class Owner:
    """An object with a lock, which counts the threads in its method."""

    def __init__(self, lock: DeviceLock) -> None:
        self.device_lock = lock
        self.num_inside = self.most_inside = 0

    @one_at_a_time
    def use(self, then=lambda: None) -> None:
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        then()
        self.num_inside -= 1


def is_free(lock: DeviceLock) -> bool:
    """Returns whether another thread could acquire the lock now."""
    found = []

    def ask():
        found.append(lock.try_enter())
        if found[0]:
            lock.leave()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def test_method_when_inside_then_others_wait_and_the_same_thread_does_not():
    owner = Owner(DeviceLock())
    seen = []
    owner.use(lambda: (seen.append(is_free(owner.device_lock)), owner.use()))
    assert seen == [False]
    assert owner.most_inside == 2 and is_free(owner.device_lock)


def test_locks_when_joined_then_one_waits_for_the_other():
    one, two, alone = Owner(DeviceLock()), Owner(DeviceLock()), DeviceLock()
    seen = []

    def look():
        seen.append((is_free(two.device_lock), is_free(alone)))

    one.use(look)
    one.device_lock.join(two.device_lock)
    one.use(look)
    assert seen == [(True, True), (False, True)]


def test_lock_when_joined_inside_then_is_given_back():
    owner, other = Owner(DeviceLock()), DeviceLock()
    seen = []

    def join():
        owner.device_lock.join(other)
        seen.append(is_free(other))

    owner.use(join)
    assert seen == [False]
    assert is_free(owner.device_lock) and is_free(other)


def test_copy_then_has_a_lock_of_its_own():
    owner, other = Owner(DeviceLock()), DeviceLock()
    owner.device_lock.join(other)
    duplicate = copy.deepcopy(owner)
    owner.use(lambda: duplicate.use())
    seen = []
    owner.use(lambda: seen.append(is_free(duplicate.device_lock)))
    assert seen == [True]

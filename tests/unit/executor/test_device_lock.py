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
        found.append(lock.lock.acquire(blocking=False))
        if found[0]:
            lock.lock.release()

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


def test_locks_when_shared_then_one_waits_for_the_other():
    one, two, alone = Owner(DeviceLock()), Owner(DeviceLock()), DeviceLock()
    seen = []

    def look():
        seen.append((is_free(two.device_lock), is_free(alone)))

    one.use(look)
    one.device_lock.share()
    two.device_lock.share()
    one.use(look)
    assert seen == [(True, True), (False, True)]


def test_lock_when_shared_inside_then_the_old_one_is_given_back():
    owner = Owner(DeviceLock())
    before = owner.device_lock.lock
    owner.use(owner.device_lock.share)
    assert owner.device_lock.lock is not before
    assert is_free(owner.device_lock)
    thread = threading.Thread(target=lambda: before.acquire(timeout=1) and before.release())
    thread.start()
    thread.join()
    assert before.acquire(blocking=False)
    before.release()


def test_copy_then_has_a_lock_of_its_own():
    owner = Owner(DeviceLock())
    owner.device_lock.share()
    duplicate = copy.deepcopy(owner)
    owner.use(lambda: duplicate.use())
    assert duplicate.device_lock.lock is not owner.device_lock.lock

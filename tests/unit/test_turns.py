"""The order in which threads acquire a lock, and the lock's state in a forked process."""

from __future__ import annotations

import os
import threading
import time

import pytest

from poptorch_emu import turns
from poptorch_emu.turns import TurnLock

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_thread_when_another_takes_the_lock_again_and_again_then_is_served_next() -> None:
    lock, order = TurnLock(), []

    def take() -> None:
        with lock:
            order.append("waiting")

    with lock:
        thread = threading.Thread(target=take)
        thread.start()
        while not lock._queue.waiting:
            time.sleep(0.001)
    with lock:
        order.append("again")
    thread.join()
    assert order == ["waiting", "again"]


def test_locks_when_joined_while_a_thread_waits_then_it_is_served() -> None:
    one, two, order = TurnLock(), TurnLock(), []

    def take() -> None:
        with one:
            order.append("taken")

    with one:
        thread = threading.Thread(target=take)
        thread.start()
        while not one._queue.waiting:
            time.sleep(0.001)
        one.join(two)
        assert not order
    thread.join()
    assert order == ["taken"] and two.try_enter()


def run_beside_a_holder(lock: TurnLock, seconds: float) -> tuple[float, int]:
    """Forks while another thread holds a lock; returns the duration, and the child's status."""
    is_held = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            time.sleep(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(7 if lock.try_enter() else 1)
    took = time.monotonic() - start
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    thread.join()
    return took, status


def test_fork_when_another_thread_holds_a_lock_then_waits_for_it() -> None:
    lock = TurnLock()
    took, status = run_beside_a_holder(lock, 0.2)
    assert took > 0.1 and status == 7
    assert lock.try_enter()


def test_fork_when_a_lock_is_held_for_long_then_the_child_finds_it_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_MAX_FORK_WAIT_SECONDS", 0.05)
    took, status = run_beside_a_holder(TurnLock(), 0.4)
    assert took < 0.3 and status == 7

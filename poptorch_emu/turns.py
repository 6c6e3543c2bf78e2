"""A re-entrant lock that threads get in the order in which they ask, and that survives a fork.

A process is forked when no other thread holds such a lock, so that the child finds what the locks
protect in a consistent state. A fork waits a few seconds for that. In the child, locks of threads
that exist only in the parent are free.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, deque

# A thread inside a call may itself wait for the thread that forks, so the wait has a limit.
_MAX_FORK_WAIT_SECONDS = 5.0


class _Queue:
    """Threads that hold a lock, and those that wait for it, of one lock or several joined ones.

    Attributes:
        holders: how often each thread holds it, by the thread's identifier. There is one holder,
            or more if locks were joined while threads held them.
        waiting: tickets of the threads that wait, in their order.
        joined_with: the queue that replaced this one, if it was joined.
    """

    def __init__(self) -> None:
        self.holders: Counter[int] = Counter()
        self.waiting: deque[object] = deque()
        self.joined_with: _Queue | None = None
        _queues.add(self)


_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()
_changed = threading.Condition()
# How many locks each thread holds. Such a thread waits only for holders: threads in the queue
# before it may wait for a lock that it holds.
_num_held: Counter[int] = Counter()
_num_forks = 0


class TurnLock:
    """A lock to be held in a `with` statement; locks that were joined are one lock."""

    def __init__(self) -> None:
        """Starts free."""
        self._queue = _Queue()

    def join(self, other: TurnLock) -> None:
        """Makes this lock and `other` one; threads that hold one of them go on."""
        with _changed:
            mine, others = self._newest(), other._newest()
            if mine is not others:
                others.holders.update(mine.holders)
                others.waiting.extend(mine.waiting)
                mine.joined_with = others

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds the lock."""
        return threading.get_ident() in self._newest().holders

    def try_enter(self) -> bool:
        """Takes the lock if no other thread holds it; returns whether."""
        thread = threading.get_ident()
        with _changed:
            is_free = not self._newest().holders.keys() - {thread}
            if is_free:
                self._newest().holders[thread] += 1
                _num_held[thread] += 1
            return is_free

    def __enter__(self) -> None:
        """Waits until no other thread holds the lock, and takes it."""
        thread = threading.get_ident()
        with _changed:
            if thread not in self._newest().holders:
                self._wait(thread)
            self._newest().holders[thread] += 1
            _num_held[thread] += 1

    def __exit__(self, *_: object) -> None:
        """Takes back `__enter__`."""
        self.leave()

    def leave(self) -> None:
        """Releases the lock, if the thread did not take it several times."""
        thread = threading.get_ident()
        with _changed:
            _subtract(self._newest().holders, thread)
            _subtract(_num_held, thread)
            _changed.notify_all()

    def _wait(self, thread: int) -> None:
        """Waits for other holders, and for those who asked before unless the thread has a lock."""
        ticket = object()
        is_first = thread in _num_held
        self._newest().waiting.append(ticket)
        try:
            while self._newest().holders or not (
                is_first or (self._newest().waiting[0] is ticket and not _num_forks)
            ):
                _changed.wait()
        except BaseException:
            _changed.notify_all()  # Threads behind this one may be the next.
            raise
        finally:
            self._newest().waiting.remove(ticket)

    def _newest(self) -> _Queue:
        while self._queue.joined_with is not None:
            self._queue = self._queue.joined_with
        return self._queue


def _subtract(counts: Counter[int], thread: int) -> None:
    counts[thread] -= 1
    if not counts[thread]:
        del counts[thread]


def _before_fork() -> None:
    """Keeps other threads from taking locks, and waits until they have released theirs."""
    global _num_forks
    own, end = {threading.get_ident()}, time.monotonic() + _MAX_FORK_WAIT_SECONDS
    with _changed:
        _num_forks += 1
        while _num_held.keys() - own and (seconds := end - time.monotonic()) > 0:
            _changed.wait(seconds)


def _after_fork_in_parent() -> None:
    global _num_forks
    with _changed:
        _num_forks -= 1
        _changed.notify_all()


def _after_fork_in_child() -> None:
    """Forgets the other threads."""
    global _changed, _num_forks
    _changed, _num_forks = threading.Condition(), 0
    thread = threading.get_ident()
    for counts in (_num_held, *(queue.holders for queue in _queues)):
        for other in counts.keys() - {thread}:
            del counts[other]
    for queue in _queues:
        queue.waiting.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)

"""A re-entrant lock that threads get in the order in which they ask, and that survives a fork.

A process is forked when no other thread holds such a lock, so that the child finds the protected
objects in a consistent state. A fork waits a few seconds for that. In the child, locks of threads
that exist only in the parent are free.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque

# A thread inside a call may itself wait for the thread that forks, so the wait has a limit.
_MAX_FORK_WAIT_SECONDS = 5.0


class _Queue:
    """The thread that holds a lock, and the threads that wait for it.

    A lock that nobody waits for costs one `acquire` and no more, because each call of a model
    takes several.

    Attributes:
        free: a lock of Python's, which `owner` holds.
        owner: identifier of the thread that holds the lock; None while it is free.
        num_entries: how often the owner holds it.
        waiting: tickets of the waiting threads, in their order.
        joined_with: the queue that replaced this one, if it was joined.
        older: queues that this one replaced. Threads may still hold their locks.
    """

    def __init__(self) -> None:
        self.free = threading.Lock()
        self.owner: int | None = None
        self.num_entries = 0
        self.waiting: deque[object] = deque()
        self.joined_with: _Queue | None = None
        self.older: list[_Queue] = []
        _queues.add(self)

    def try_take(self, thread: int) -> bool:
        """Takes the lock for `thread` if no other thread holds it; returns whether."""
        if self.owner == thread:
            self.num_entries += 1
            return True
        if self.older and any(queue.owner not in (None, thread) for queue in self.older):
            return False
        if not self.free.acquire(blocking=False):
            return False
        self.owner = thread
        self.num_entries = 1
        if self.joined_with is None:
            return True
        self.give_back()  # Joined meanwhile; the other queue counts now.
        return False

    def give_back(self) -> None:
        """Takes back one `try_take`."""
        self.num_entries -= 1
        if self.num_entries:
            return
        self.owner = None
        self.free.release()
        if self.waiting or _num_forks or self.joined_with is not None:
            with _changed:
                _changed.notify_all()

    def held_by(self, thread: int) -> _Queue | None:
        """Returns this queue or an older one whose lock `thread` holds, the newest first."""
        if self.owner == thread:
            return self
        return next((queue for queue in self.older if queue.owner == thread), None)


_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()
_changed = threading.Condition()
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
                others.older = [mine, *mine.older, *others.older]
                others.waiting.extend(mine.waiting)
                mine.joined_with = others

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds the lock."""
        return self._newest().held_by(threading.get_ident()) is not None

    def try_enter(self) -> bool:
        """Takes the lock if no other thread holds it; returns whether."""
        return self._newest().try_take(threading.get_ident())

    def __enter__(self) -> None:
        """Waits until no other thread holds the lock, and takes it."""
        thread, queue = threading.get_ident(), self._queue
        if queue.waiting or _num_forks or not queue.try_take(thread):
            self._wait(thread)
        elif _num_forks and queue.num_entries == 1 and not _holds_locks(thread, but=queue):
            queue.give_back()  # The fork began meanwhile, and may not have seen the new owner.
            self._wait(thread)

    def __exit__(self, *_: object) -> None:
        """Takes back `__enter__`."""
        self.leave()

    def leave(self) -> None:
        """Releases the lock, if the thread did not take it several times."""
        queue = self._newest().held_by(threading.get_ident())
        assert queue is not None, "A thread leaves a lock that it does not hold."
        queue.give_back()

    def _wait(self, thread: int) -> None:
        """Waits for other holders, and for those who asked before.

        A thread that holds a lock waits only for holders, because threads in the queue before it
        may wait for a lock that it holds.
        """
        is_first, ticket = _holds_locks(thread), object()
        with _changed:
            self._newest().waiting.append(ticket)
            try:
                while not self._is_served(thread, ticket, is_first):
                    _changed.wait()
            except BaseException:
                _changed.notify_all()  # Threads behind this one may be the next.
                raise
            finally:
                self._newest().waiting.remove(ticket)

    def _is_served(self, thread: int, ticket: object, is_first: bool) -> bool:
        """Takes the lock if it is this thread's turn; returns whether."""
        queue = self._newest()
        is_next = is_first or (queue.waiting[0] is ticket and not _num_forks)
        return is_next and queue.try_take(thread)

    def _newest(self) -> _Queue:
        while self._queue.joined_with is not None:
            self._queue = self._queue.joined_with
        return self._queue


def _holds_locks(thread: int, but: _Queue | None = None) -> bool:
    return any(queue.owner == thread for queue in _queues if queue is not but)


def _before_fork() -> None:
    """Keeps other threads from taking locks, and waits until they have released theirs."""
    global _num_forks
    own, end = (None, threading.get_ident()), time.monotonic() + _MAX_FORK_WAIT_SECONDS
    with _changed:
        _num_forks += 1
        while any(queue.owner not in own for queue in _queues):
            seconds = end - time.monotonic()
            if seconds <= 0:
                break
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
    for queue in _queues:
        queue.waiting.clear()
        if queue.owner != thread:
            queue.free, queue.owner, queue.num_entries = threading.Lock(), None, 0


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)

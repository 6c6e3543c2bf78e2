"""A re-entrant lock that threads receive in the order of their requests, and that survives a fork.

A fork waits a few seconds until no other thread holds such a lock, so that the child finds the
protected objects in a consistent state. In the child, locks of threads that exist only in the
parent are free.
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

    Without waiting threads, taking a lock costs only one `acquire`, because each call of a model
    takes several locks.

    Attributes:
        free: Python's lock, which `owner` holds.
        owner: identifier of the thread that holds the lock; None while it is free.
        num_entries: number of times that the owner has taken the lock without releasing it.
        waiting: tickets of the waiting threads, in the order of their requests.
        joined_with: queue that replaced this one when their locks were joined; otherwise None.
        older: queues that this one replaced, because threads may still hold their locks.
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
        """Takes the lock for `thread` if no other thread holds it; returns whether it did."""
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
        self.give_back()  # The locks were joined meanwhile, so the other queue is valid now.
        return False

    def give_back(self) -> None:
        """Reverses one `try_take`."""
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
    """A lock for a `with` statement; joined locks act as one lock."""

    def __init__(self) -> None:
        """Creates a free lock."""
        self._queue = _Queue()

    def join(self, other: TurnLock) -> None:
        """Makes this lock and `other` one lock; threads that hold one of them continue."""
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
        """Takes the lock if no other thread holds it; returns whether it did."""
        return self._newest().try_take(threading.get_ident())

    def __enter__(self) -> None:
        """Waits until no other thread holds the lock, and takes it."""
        thread, queue = threading.get_ident(), self._queue
        if queue.waiting or _num_forks or not queue.try_take(thread):
            self._wait(thread)
        elif _num_forks and queue.num_entries == 1 and not _holds_locks(thread, but=queue):
            queue.give_back()  # A fork began meanwhile, and may not have seen this owner.
            self._wait(thread)

    def leave(self, *_: object) -> None:
        """Reverses one entry of this thread; the last one releases the lock."""
        queue: _Queue | None = self._queue
        if self._queue.older or self._queue.joined_with is not None:
            queue = self._newest().held_by(threading.get_ident())
        assert queue is not None, "A thread leaves a lock that it does not hold."
        queue.give_back()

    __exit__ = leave

    def _wait(self, thread: int) -> None:
        """Waits until no thread holds the lock and earlier requests have been served.

        A thread that already holds another lock does not wait for earlier requests, because their
        threads may wait for its lock.
        """
        is_first, ticket = _holds_locks(thread), object()
        with _changed:
            self._newest().waiting.append(ticket)
            try:
                while not self._is_served(thread, ticket, is_first):
                    _changed.wait()
            except BaseException:
                _changed.notify_all()  # The next thread in the queue may have its turn now.
                raise
            finally:
                self._newest().waiting.remove(ticket)

    def _is_served(self, thread: int, ticket: object, is_first: bool) -> bool:
        """Takes the lock if it is this thread's turn; returns whether it did."""
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
    """Frees the locks of threads that exist only in the parent."""
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

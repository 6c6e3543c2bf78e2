"""The protocol between an asynchronous accessor and its worker process in shared memory.

The protocol has counters that only grow, each written by one side: records that the worker has
published, slots that the accessor has released, and epochs that it has begun. A record means that
the next slot is filled, or that an epoch has ended. The worker owns a slot of the ring until it
publishes it. The accessor owns it from then until it releases it. Every slot is released once, even
if the accessor has already begun a later epoch.

Reading a counter is nearly free, while a system call costs 2 to 3 % of the time of a small batch. A
side that has to wait raises its flag, reads the counter again, and sleeps. A side that changes a
counter reads the other side's flag afterwards. So at least one side sees the other's change,
provided that each processor's store is visible before its next load. The fence is for that. The
rest of the protocol only needs stores to become visible in their order, as on x86-64. As a safety
net, a sleeper also reads the counter once a second; no test depends on that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from poptorch_emu.data.accessor_link import Kind, Link

# Each counter has its own cache line, so that a change does not evict another counter.
_WORDS_PER_LINE = 8
_ACCESSOR_FLAG, _WORKER_FLAG, _PUBLISHED, _RELEASED, _BEGUN, _RECORDS = (
    index * _WORDS_PER_LINE for index in range(6)
)
_WORDS_PER_RECORD = 2

# Number of rows in the record that ends an epoch.
_END = -1

# Time between two reads of a sleeping side (assumed).
_LOOK_AGAIN_SECONDS = 1.0


class Record(NamedTuple):
    """A filled slot or the end of an epoch. `num_rows` is 0 for an element that was not cut."""

    epoch: int
    num_rows: int

    @property
    def is_end(self) -> bool:
        """Whether the record ends an epoch."""
        return self.num_rows == _END


def num_words(num_slots: int) -> int:
    """Returns the number of 64-bit words of the progress."""
    return _RECORDS + _WORDS_PER_RECORD * _num_records(num_slots)


def _num_records(num_slots: int) -> int:
    # One record for each slot, one for the end of each slot's epoch, and one for an empty epoch.
    return 2 * num_slots + 2


class _RingProgress:
    """The operations that both sides share."""

    def __init__(self, words: memoryview, num_slots: int, link: Link, flags: tuple[int, int]):
        self._words = words
        self._num_slots = num_slots
        self._num_records = _num_records(num_slots)
        self._link = link
        self._our_flag, self._their_flag = flags
        self._lock = threading.Lock()

    def wait(self, is_over: Callable[[], bool]) -> Any:
        """Sleeps until `is_over` returns true; it is called after each wake-up by the other side.

        Returns:
            The content of a message other than a wake-up, if such a message came first.

        Raises:
            LinkClosed: the other side ended first.
        """
        content = None
        while content is None:
            self._words[self._our_flag] = 1
            self._fence()
            if is_over():
                break
            if self._link.has_message(_LOOK_AGAIN_SECONDS):
                _, content = self._link.receive()
        self._words[self._our_flag] = 0
        return content

    def _change(self, place: int, value: int) -> None:
        self._words[place] = value
        self._fence()
        if self._words[self._their_flag]:
            self._words[self._their_flag] = 0  # Each change wakes the other side once.
            self._link.send(Kind.WAKE)

    def _fence(self) -> None:
        # Locking uses locked instructions, which no later load can overtake.
        with self._lock:
            pass

    def _place_of_record(self, count: int) -> int:
        return _RECORDS + _WORDS_PER_RECORD * (count % self._num_records)


class WorkerProgress(_RingProgress):
    """The worker's view."""

    def __init__(self, words: memoryview, num_slots: int, link: Link) -> None:
        """Uses `words`, all 0 before either side has."""
        super().__init__(words, num_slots, link, (_WORKER_FLAG, _ACCESSOR_FLAG))
        self.num_filled = 0
        self._num_published = 0

    @property
    def num_free(self) -> int:
        """Number of slots that can be filled."""
        free: int = self._num_slots - self.num_filled + self._words[_RELEASED]
        return free

    @property
    def num_begun(self) -> int:
        """Number of epochs that the accessor has begun."""
        begun: int = self._words[_BEGUN]
        return begun

    def publish(self, epoch: int, num_rows: int) -> None:
        """Publishes the next slot."""
        self.num_filled += 1
        self._add(epoch, num_rows)

    def publish_end(self, epoch: int) -> None:
        """Publishes the end of an epoch."""
        self._add(epoch, _END)

    def _add(self, epoch: int, num_rows: int) -> None:
        place = self._place_of_record(self._num_published)
        self._words[place], self._words[place + 1] = epoch, num_rows
        self._num_published += 1
        self._change(_PUBLISHED, self._num_published)


class ReaderProgress(_RingProgress):
    """The accessor's view."""

    def __init__(self, words: memoryview, num_slots: int, link: Link) -> None:
        """Uses `words`, all 0 before either side has."""
        super().__init__(words, num_slots, link, (_ACCESSOR_FLAG, _WORKER_FLAG))
        self._num_taken = 0
        self._num_released = 0

    def begin(self, num_epochs: int) -> None:
        """Begins epochs up to number `num_epochs`; the worker stops loading earlier ones."""
        self._change(_BEGUN, num_epochs)

    @property
    def num_waiting(self) -> int:
        """Number of records that can be taken."""
        published: int = self._words[_PUBLISHED]
        return published - self._num_taken

    @property
    def is_full(self) -> bool:
        """Whether at least as many records wait as the ring has slots.

        The worker may then be waiting for a slot. This is not certain, because the end of an epoch
        is a record without a slot.
        """
        return self.num_waiting >= self._num_slots

    def take(self) -> Record:
        """Takes and returns the oldest waiting record."""
        place = self._place_of_record(self._num_taken)
        self._num_taken += 1
        return Record(self._words[place], self._words[place + 1])

    def release(self) -> None:
        """Returns the oldest filled slot to the worker."""
        self._num_released += 1
        self._change(_RELEASED, self._num_released)

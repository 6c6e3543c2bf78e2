"""What an asynchronous accessor and its worker process tell each other in shared memory.

Numbers that only grow, each written by one side alone: how many records the worker has published,
how many slots the accessor has released, how many epochs it has begun. A record says that the next
slot is filled, or that an epoch has ended. The worker owns a slot of the ring until it has
published it, the accessor from then until it has released it; each is released once, also where the
accessor has lost interest in its epoch.

A look at a number costs next to nothing; a system call costs 2 to 3 % of the time of a small batch.
Whoever has to wait raises its flag, looks again, and sleeps; whoever changes a number looks at the
other's flag afterwards. So one of the two sees what the other did, provided that neither processor
looks before its own store is out: that is what the fence is for. All else needs no more than that
stores become visible in their order, as they do on x86-64. A sleeper looks again after a second in
any case, which no test depends on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from poptorch_emu.data.accessor_link import Kind, Link

# Places of the numbers, each in a cache line of its own: a change takes no other number away.
_WORDS_PER_LINE = 8
_ACCESSOR_FLAG, _WORKER_FLAG, _PUBLISHED, _RELEASED, _BEGUN, _RECORDS = (
    index * _WORDS_PER_LINE for index in range(6)
)
_WORDS_PER_RECORD = 2

# Stands for the rows of an epoch's end.
_END = -1

# Assumed: often enough for a safety net.
_LOOK_AGAIN_SECONDS = 1.0


class Record(NamedTuple):
    """A filled slot, whose `num_rows` is 0 for an element that was not cut, or an epoch's end."""

    epoch: int
    num_rows: int

    @property
    def is_end(self) -> bool:
        """Whether it is an epoch's end."""
        return self.num_rows == _END


def num_words(num_slots: int) -> int:
    """Returns how many 64-bit words the progress takes."""
    return _RECORDS + _WORDS_PER_RECORD * _num_records(num_slots)


def _num_records(num_slots: int) -> int:
    # Beside a record for each slot the end of its epoch, and that of an empty one after them.
    return 2 * num_slots + 2


class _RingProgress:
    """What both sides do with the numbers."""

    def __init__(self, words: memoryview, num_slots: int, link: Link, flags: tuple[int, int]):
        self._words = words
        self._num_slots = num_slots
        self._num_records = _num_records(num_slots)
        self._link = link
        self._our_flag, self._their_flag = flags
        self._lock = threading.Lock()

    def wait(self, is_over: Callable[[], bool]) -> Any:
        """Sleeps until `is_over` returns true, which is asked whenever the other side changed it.

        Returns:
            What followed a message, other than the wake-ups, that came first.

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
            self._words[self._their_flag] = 0  # One change wakes once.
            self._link.send(Kind.WAKE)

    def _fence(self) -> None:
        # Locked instructions, which let no later load overtake an earlier store.
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
        """How many slots can be filled."""
        free: int = self._num_slots - self.num_filled + self._words[_RELEASED]
        return free

    @property
    def num_begun(self) -> int:
        """How many epochs the accessor has asked for."""
        begun: int = self._words[_BEGUN]
        return begun

    def publish(self, epoch: int, num_rows: int) -> None:
        """Hands the next slot over."""
        self.num_filled += 1
        self._add(epoch, num_rows)

    def publish_end(self, epoch: int) -> None:
        """Says that an epoch has no more elements."""
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
        """Asks for that many epochs in all; loading of those before the last of them stops."""
        self._change(_BEGUN, num_epochs)

    @property
    def num_waiting(self) -> int:
        """How many records there are to take."""
        published: int = self._words[_PUBLISHED]
        return published - self._num_taken

    @property
    def is_full(self) -> bool:
        """Whether as many records wait as there are slots: the worker may be waiting for one.

        An epoch's end is a record, too, but has no slot.
        """
        return self.num_waiting >= self._num_slots

    def take(self) -> Record:
        """Returns the oldest record that was not taken."""
        place = self._place_of_record(self._num_taken)
        self._num_taken += 1
        return Record(self._words[place], self._words[place + 1])

    def release(self) -> None:
        """Gives the oldest filled slot back to the worker."""
        self._num_released += 1
        self._change(_RELEASED, self._num_released)

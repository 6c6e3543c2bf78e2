"""What an asynchronous accessor and its worker process say to each other, and the pipe they use.

The worker owns a slot of the ring until it has announced it as `Filled`, the accessor from then
until it answers `Released`: each `Filled` has exactly one answer, also where the accessor has lost
interest in that epoch. The end of the pipe is the end of the worker, so it cannot outlive the
process that started it.
"""

from __future__ import annotations

import pickle
import select
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from poptorch_emu.runtime.ring import RingLayout

# Only Windows wants to know which process a descriptor is sent to.
_ANY_PROCESS = 0


@dataclass(frozen=True)
class Begin:
    """Asks for an epoch; loading of earlier ones stops."""

    epoch: int


@dataclass(frozen=True)
class Released:
    """Gives the oldest filled slot back to the worker."""


@dataclass(frozen=True)
class Ready:
    """Says what elements look like; the descriptor of the ring's memory follows.

    The template is pickled apart, lest its tensors travel as descriptors.
    """

    layout: RingLayout
    pickled_template: bytes


@dataclass(frozen=True)
class Filled:
    """Hands the next slot over; `num_rows` is `None` for an element that was not cut."""

    epoch: int
    num_rows: int | None


@dataclass(frozen=True)
class Ended:
    """Says that an epoch has no more elements."""

    epoch: int


@dataclass(frozen=True)
class Failed:
    """Says why the worker is about to end."""

    reason: str


class LinkClosed(Exception):  # noqa: N818
    """The other end of the pipe is closed."""


class Link:
    """One end of the pipe; every method raises `LinkClosed` where the other end is closed.

    Two messages go by for each element, so plain pickles and one poller replace what
    `Connection.send` and `Connection.poll` set up for every call.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poller = select.poll()
        self._poller.register(connection, select.POLLIN)

    def send(self, message: Any) -> None:
        """Sends one of the messages above."""
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise LinkClosed from error

    def receive(self) -> Any:
        """Waits for a message and returns it."""
        try:
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise LinkClosed from error

    def has_message(self) -> bool:
        """Returns whether `receive` would not wait; also true where it would raise."""
        return bool(self._poller.poll(0))

    def send_file(self, file: int) -> None:
        """Sends a copy of a file descriptor."""
        try:
            send_handle(self._connection, file, _ANY_PROCESS)
        except OSError as error:
            raise LinkClosed from error

    def receive_file(self) -> int:
        """Waits for a file descriptor and returns it; the caller closes it."""
        try:
            return recv_handle(self._connection)
        except (EOFError, OSError) as error:
            raise LinkClosed from error

"""Pipes that let an asynchronous accessor and its worker wake each other and notice each other's
end.

There is one pipe for each direction. A waiting side sleeps until its pipe has a message or the
other side closes it, so that neither outlives the other. `ring_progress.py` has the progress that
the sides wait for.
"""

from __future__ import annotations

import os
import select
import threading
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakKeyDictionary

from poptorch_emu.data.ring import RingLayout

_MILLISECONDS_PER_SECOND = 1e3


class Kind(IntEnum):
    """The kind of a message."""

    WAKE = 0  # The other side's progress has changed.
    READY = 1  # The worker has made the ring; an `ElementLayout` follows.
    FAILED = 2  # The worker is about to end; the reason, a string, follows.


@dataclass(frozen=True)
class ElementLayout:
    """The layout of elements. `poptorch_emu.structure.rebuild` fills the template.

    The template is pickled separately. Otherwise its tensors would be sent as descriptors.
    """

    layout: RingLayout
    pickled_template: bytes


class LinkClosed(Exception):  # noqa: N818
    """The other end of the pipes is closed."""


class Link:
    """One end of the pipes. Its methods raise `LinkClosed` if the other end is closed."""

    def __init__(self, receiver: Connection, sender: Connection) -> None:
        self._receiver = receiver
        self._sender = sender
        self._poller = select.poll()
        self._poller.register(receiver, select.POLLIN)

    def __reduce__(self) -> tuple[Any, ...]:
        return Link, (self._receiver, self._sender)

    def close(self) -> None:
        """Closes this end."""
        self._receiver.close()
        self._sender.close()

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed in this process."""
        return self._receiver.closed

    def close_when_forked(self, unless_by_this_thread: bool = False) -> None:
        """Closes this end in every forked child.

        Otherwise a child would keep the pipe open, and the other side would not notice the end of
        this process.

        Args:
            unless_by_this_thread: whether children that this thread forks keep this end.
        """
        _keeper_of[self] = threading.get_ident() if unless_by_this_thread else None

    def send(self, kind: Kind, content: Any = None) -> None:
        """Sends a message with its content."""
        try:
            os.write(self._sender.fileno(), bytes((kind,)))
            if content is not None:
                self._sender.send(content)
        except OSError as error:
            raise LinkClosed from error

    def receive(self) -> tuple[Kind, Any]:
        """Waits for a message and returns it with its content."""
        try:
            number = os.read(self._receiver.fileno(), 1)
            if not number:
                raise LinkClosed
            kind = Kind(number[0])
            return kind, None if kind == Kind.WAKE else self._receiver.recv()
        except (EOFError, OSError) as error:
            raise LinkClosed from error

    def has_message(self, max_seconds: float = 0) -> bool:
        """Returns whether `receive` would return or raise without waiting.

        Args:
            max_seconds: longest time to wait for a message.
        """
        return bool(self._poller.poll(max_seconds * _MILLISECONDS_PER_SECOND))


# For each link that forked children close: the thread whose children keep it.
_keeper_of: WeakKeyDictionary[Link, int | None] = WeakKeyDictionary()


def _close_links() -> None:
    for link, keeper in list(_keeper_of.items()):
        if keeper != threading.get_ident():
            link.close()


# Unlike multiprocessing's own hook, this one also runs in children of os.fork.
os.register_at_fork(after_in_child=_close_links)


def new_links() -> tuple[Link, Link]:
    """Returns the two ends of two new pipes."""
    our_receiver, their_sender = Pipe(duplex=False)
    their_receiver, our_sender = Pipe(duplex=False)
    return Link(our_receiver, our_sender), Link(their_receiver, their_sender)

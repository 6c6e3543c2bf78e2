"""The connection of this process to the others: one for the whole process, made once.

Whoever exchanges gradients asks it for the group's name, agrees with the others on what must be
equal, and reports to it what failed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

from poptorch_emu.distributed.failed_process import Failure, Watcher, find, record, wait_until_seen
from poptorch_emu.distributed.message_store import MessageStore
from poptorch_emu.distributed.rendezvous import TIMEOUT, join_default_group, timeout_seconds
from poptorch_emu.errors import Error, make_error
from poptorch_emu.torch_versions import default_store

# After a connection is lost, so long may the cause take to appear in the store.
_CAUSE_SECONDS = 1.0
# When the network fails, the store does not answer, and asking it would take forever.
_ANSWER_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class Exchange(Protocol):
    """What waits for other processes and can be told to stop."""

    def cancel(self, reason: str, /) -> None:
        """Ends what waits, now and later."""

    def lost_process(self) -> int:
        """Returns the process whose message failed, -1 if none did."""


class Connection:
    """This process among the others.

    Attributes:
        process: its number.
        group_name: by which the engine finds its group of torch.distributed: Gloo, of all
            processes, used for nothing else.
        host: the name of this machine.
    """

    def __init__(self, process: int, num_processes: int) -> None:
        """Meets the others, who all do the same.

        Raises:
            Error: they are not found.
        """
        self._made_default_group = join_default_group(process, num_processes)
        self.process = process
        self.num_processes = num_processes
        self.timeout_seconds = timeout_seconds()
        self.group_name = str(self._new_group().group_name)
        self._host_group: dist.ProcessGroup | None = None
        self.host = socket.gethostname()
        self.failure: Failure | None = None
        self.num_calls = 0
        self._pid = os.getpid()
        self._num_models = 0
        self._num_meetings = 0
        self._exchanges: weakref.WeakSet[Any] = weakref.WeakSet()
        self._store = MessageStore(default_store())
        self._is_store_silent = False
        self._store.write(f"host/{process}", self.host)
        self._hosts = [self.read(f"host/{other}") for other in range(num_processes)]
        self._watcher = Watcher(
            self._store.for_another_thread(), process, self._hosts[0], self._note
        )
        self._watch_errors()
        atexit.register(self._end)

    def host_group(self) -> dist.ProcessGroup:
        """Returns the group for tensors of the host: Gloo, whatever the default group is.

        All processes must ask for it as one of the same acts, since its first call makes it.
        """
        if self._host_group is None:
            self._host_group = self._new_group()
        return self._host_group

    def host_of(self, process: int) -> str:
        """Returns the name of the machine that a process runs on."""
        return self._hosts[process]

    def next_model(self) -> int:
        """Returns the number of a model that begins to exchange; equal in all processes."""
        self._num_models += 1
        return self._num_models - 1

    def add(self, exchange: Exchange) -> None:
        """Has an exchange cancelled when a process fails."""
        self._exchanges.add(exchange)
        if self.failure is not None:
            exchange.cancel(str(self.failure))

    def check(self) -> None:
        """Raises what has failed.

        Raises:
            Error: a process has failed, or this one was forked from one that is connected.
        """
        if os.getpid() != self._pid:
            raise make_error(
                "This process was forked after the connection to other processes was made, which "
                "it cannot use. Start processes before popdist.init and the first model, or with "
                "the start method 'spawn'."
            )
        if self.failure is not None:
            raise make_error(str(self.failure))

    def fail(self, line: str, process: int | None = None) -> Failure:
        """Lets all processes know of a failure; returns the first one.

        Args:
            line: what happened.
            process: that failed; by default this one.
        """
        failed = self.process if process is None else process
        failure = Failure(failed, self._hosts[failed], line)
        failure = self._answer(lambda: record(self._store, failure)) or failure
        self._note(failure)
        return failure

    def explained(self, error: Error, exchange: Exchange) -> Error:
        """Returns what an exchange's error is to be called, after letting the others know."""
        lost = exchange.lost_process()
        if self.failure is None and lost < 0:
            self.fail(error.message.splitlines()[0] if error.message else str(error))
            return error
        deadline = time.monotonic() + _CAUSE_SECONDS
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(0.02)
        failure = self.failure or self.fail(self._end_of(lost) or error.message, lost)
        return error if failure.process == self.process and lost < 0 else make_error(str(failure))

    def read(self, key: str) -> str:
        """Returns what a process has put under `key`, and waits until it has.

        Raises:
            Error: a process failed meanwhile, or it took too long.
        """
        deadline = time.monotonic() + self.timeout_seconds
        pause = 0.001
        while True:
            try:
                message = self._store.read(key)
                if message is not None:
                    return message
                self.failure = self.failure or find(self._store)
            except (RuntimeError, ValueError) as error:
                raise make_error(f"The store of the launcher is gone: {error}") from error
            self.check()
            if time.monotonic() > deadline:
                raise make_error(
                    f"The other processes were silent for {self.timeout_seconds:g} s ({TIMEOUT}): "
                    f"nobody has said '{key}'. All must run the same program."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def write(self, key: str, value: str) -> None:
        """Puts a value there for others to read."""
        self.check()
        self._store.write(key, value)

    def synchronize(self) -> None:
        """Waits until all processes have called this as often.

        Raises:
            Error: a process failed meanwhile, or it took too long.
        """
        self._num_meetings += 1
        self.write(f"meeting/{self._num_meetings}/{self.process}", "")
        for process in range(self.num_processes):
            self.read(f"meeting/{self._num_meetings}/{process}")

    def _new_group(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            backend="gloo" if dist.is_gloo_available() else None,
            timeout=timedelta(seconds=self.timeout_seconds),
        )
        return group

    def _note(self, failure: Failure) -> None:
        self.failure = self.failure or failure
        for exchange in tuple(self._exchanges):
            exchange.cancel(str(self.failure))

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer | None:
        """Returns what the store answers, `None` if it is gone or silent."""
        answers: list[_Answer] = []

        def keep() -> None:
            with contextlib.suppress(RuntimeError, ValueError):
                answers.append(ask())

        if self._is_store_silent:
            return None
        thread = threading.Thread(target=keep, name="poptorch store", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        self._is_store_silent = thread.is_alive()
        return answers[0] if answers else None

    def _end_of(self, process: int) -> str:
        """Returns what a process said at its end, if it came to one."""

        def calls() -> str:
            return self._store.read(f"ended/{process}") or ""

        count = self._answer(calls)
        if not count:
            return ""
        return (
            f"it ended after {count} calls of models that train, and process "
            f"{self.process} makes call {self.num_calls}; all must make as many"
        )

    def _watch_errors(self) -> None:
        """Lets the others know of an exception that ends this process."""
        before: Callable[..., Any] = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, traceback: TracebackType | None
        ) -> None:
            if os.getpid() == self._pid and self.failure is None:
                line = (str(error).splitlines() or [""])[0]
                self.fail(f"{kind.__name__}: {line}")
            before(kind, error, traceback)

        sys.excepthook = hook

    def _end(self) -> None:
        """At the end of the process: says so, and stays until others know of a failure."""
        if os.getpid() != self._pid or self._is_store_silent:
            return
        with contextlib.suppress(RuntimeError, ValueError):
            self._store.write(f"ended/{self.process}", str(self.num_calls))
            if self.failure is not None and self.process == 0:
                failed = self.failure.process
                others = [p for p in range(1, self.num_processes) if p != failed]
                wait_until_seen(self._store, others, 1.5)
        self._watcher.stop()
        if self.failure is None:
            self._leave()

    def _leave(self) -> None:
        """Ends the groups that sums of the host used; the user's own stays for the user to end.

        Gloo's threads release the tensors of a program's last sums, for which they need the
        interpreter: one that comes too late would abort the process. This awaits them.
        """
        group, self._host_group = self._host_group, None
        if not dist.is_initialized():
            return
        if self._made_default_group:
            dist.destroy_process_group()
        elif group is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # The user has ended it already.
                dist.destroy_process_group(group)


_connection: Connection | None = None


def connect(process: int, num_processes: int) -> Connection:
    """Returns the connection to the others, made at the first call.

    Raises:
        Error: the others are not found, or the numbers are not those of the first call.
    """
    global _connection
    if _connection is None:
        _connection = Connection(process, num_processes)
    elif (process, num_processes) != (_connection.process, _connection.num_processes):
        raise make_error(
            f"This is process {process} of {num_processes} by Options.Distributed, but it has "
            f"joined as number {_connection.process} of {_connection.num_processes}. Give both the "
            "same numbers."
        )
    _connection.check()
    return _connection


def connection() -> Connection | None:
    """Returns the connection, if one was made."""
    return _connection

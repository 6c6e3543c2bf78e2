"""The connection of this process to the others, which is made once.

An executor that exchanges gradients reads the group's name from it, agrees with the other processes
through it, and reports failures to it.
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

# Time that the cause of a lost connection may take to appear in the store.
_CAUSE_SECONDS = 1.0
# Time limit for an answer of the store, because a request would block forever if the network
# failed.
_ANSWER_SECONDS = 1.0

_Answer = TypeVar("_Answer")


class Exchange(Protocol):
    """An object that waits for other processes and can be cancelled."""

    def cancel(self, reason: str, /) -> None:
        """Cancels all present and later waits."""

    def lost_process(self) -> int:
        """Returns the process whose message failed; -1 if no message failed."""


class Connection:
    """The connection of this process to the others.

    Attributes:
        process: number of this process.
        group_name: name of the engine's own group of torch.distributed, a Gloo group of all
            processes.
        host: name of this machine.
    """

    def __init__(self, process: int, num_processes: int) -> None:
        """Connects to the other processes, which must all do the same.

        Raises:
            Error: the other processes are not found.
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
        """Returns a Gloo group for tensors of the host, whatever the default group is.

        All processes must call this in the same order of collective calls, because the first call
        creates the group.
        """
        if self._host_group is None:
            self._host_group = self._new_group()
        return self._host_group

    def host_of(self, process: int) -> str:
        """Returns the name of the machine of a process."""
        return self._hosts[process]

    def next_model(self) -> int:
        """Returns a number for a model that begins to exchange, the same in all processes."""
        self._num_models += 1
        return self._num_models - 1

    def add(self, exchange: Exchange) -> None:
        """Registers an exchange, which is cancelled when a process fails."""
        self._exchanges.add(exchange)
        if self.failure is not None:
            exchange.cancel(str(self.failure))

    def check(self) -> None:
        """Raises an error if a process has failed.

        Raises:
            Error: a process has failed, or this process was forked from a connected one.
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
        """Reports a failure to all processes; returns the first failure.

        Args:
            line: description of the failure.
            process: process that failed; by default this one.
        """
        failed = self.process if process is None else process
        failure = Failure(failed, self._hosts[failed], line)
        failure = self._answer(lambda: record(self._store, failure)) or failure
        self._note(failure)
        return failure

    def explained(self, error: Error, exchange: Exchange) -> Error:
        """Reports the error of an exchange to all processes; returns the error to raise."""
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
        """Waits for the value that another process writes under `key`, and returns it.

        Raises:
            Error: a process failed meanwhile, or the time limit has passed.
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
                raise make_error(
                    "The connection to the launcher's store, through which processes exchange "
                    f"messages, was lost: {error}"
                ) from error
            self.check()
            if time.monotonic() > deadline:
                raise make_error(
                    f"No other process has sent '{key}' within {self.timeout_seconds:g} s "
                    f"({TIMEOUT}). All processes must run the same program."
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def write(self, key: str, value: str) -> None:
        """Writes a value for other processes to read."""
        self.check()
        self._store.write(key, value)

    def synchronize(self) -> None:
        """Waits until all processes have made the same number of calls of this method.

        Raises:
            Error: a process failed meanwhile, or the time limit has passed.
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
        """Returns the answer of the store; `None` if it is gone or does not answer in time."""
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
        """Returns the message that a process wrote when it ended; empty if it wrote none."""

        def calls() -> str:
            return self._store.read(f"ended/{process}") or ""

        count = self._answer(calls)
        if not count:
            return ""
        return (
            f"it ended after {count} calls of training models, but process {self.process} makes "
            f"call {self.num_calls}; all processes must make the same number of calls"
        )

    def _watch_errors(self) -> None:
        """Reports an exception that ends this process to the others."""
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
        """Writes that this process ends, and waits until the others have seen a failure."""
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
        """Destroys the groups of the host's sums, but not the user's own group.

        Gloo's threads release the tensors of the last sums and need the interpreter for that. A
        thread that does so after the interpreter has ended would abort the process, so this method
        waits for them.
        """
        group, self._host_group = self._host_group, None
        if not dist.is_initialized():
            return
        if self._made_default_group:
            dist.destroy_process_group()
        elif group is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # The user may have destroyed it.
                dist.destroy_process_group(group)


_connection: Connection | None = None


def connect(process: int, num_processes: int) -> Connection:
    """Returns the connection to the other processes, which the first call makes.

    Raises:
        Error: the other processes are not found, or the arguments differ from the first call's.
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
    """Returns the connection; `None` if there is none."""
    return _connection

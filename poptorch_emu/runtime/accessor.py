"""Iterates a dataset that another process loads ahead of time.

This is the side of the process that consumes; what the worker does is told in `accessor_worker.py`,
and who owns which slot of the ring when in `accessor_link.py`. Nothing here polls: whoever has to
wait sleeps in the kernel until a message comes or the other side is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
import warnings
from collections.abc import Iterable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from poptorch_emu.enums import SharingStrategy
from poptorch_emu.errors import make_error
from poptorch_emu.runtime.accessor_link import (
    Begin,
    Ended,
    Failed,
    Filled,
    Link,
    LinkClosed,
    Ready,
    Released,
)
from poptorch_emu.runtime.accessor_worker import WorkerSettings, close_when_forked, run_worker
from poptorch_emu.runtime.cargo import packed
from poptorch_emu.runtime.ring import Ring
from poptorch_emu.structure import rebuild

# Source: PopTorch reference, AsynchronousDataAccessor, `terminate`.
_GRACE_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# A worker must end before multiprocessing joins it at exit, so its finaliser has a priority.
_EXIT_PRIORITY = 10

_START_METHOD = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}

# Workers are forked from a server that has imported these, once instead of for each of them.
_SERVER_MODULES = ["torch", run_worker.__module__]


class Accessor:
    """One worker and the ring it fills; an iterator that `begin` starts anew."""

    def __init__(
        self,
        dataset: Iterable[Any],
        settings: WorkerSettings,
        strategy: SharingStrategy,
        miss_sleep_seconds: float,
    ) -> None:
        """Starts the worker and waits for its first element.

        Args:
            dataset: what to iterate.
            settings: how.
            strategy: how the dataset reaches the worker.
            miss_sleep_seconds: the shortest time to wait for an element that is not there yet.

        Raises:
            Error: the worker ended before it had an element.
        """
        self._rebatched_rows = settings.rebatched_rows
        self._miss_sleep_seconds = miss_sleep_seconds
        self._epoch = 0
        self._asked_epoch = -1
        self._is_touched = False
        self._has_ended = False
        self._is_holding = False
        self._num_received = 0
        self._failure: str | None = None
        connection, self._process = _start_worker(dataset, settings, strategy)
        self._link = Link(connection)
        self._finalizer = Finalize(
            self, _stop_worker, (self._process, connection), exitpriority=_EXIT_PRIORITY
        )
        try:
            self._ring, self._template = self._set_up()
        except BaseException:
            self.stop()
            raise

    def begin(self) -> None:
        """Goes to the beginning of the data, unless it is there.

        Raises:
            Error: the worker was stopped.
            AssertionError: the worker has failed.
        """
        self._check_running()
        if self._is_touched:
            self._release()
            self._epoch += 1
            self._is_touched = self._has_ended = False
        self._ask()

    def next(self) -> Any:
        """Returns the next element, whose tensors are valid until the next call.

        Raises:
            StopIteration: the data has ended; `begin` starts anew.
            Error: the worker was stopped.
            AssertionError: the worker has failed.
        """
        self._check_running()
        self._release()
        if self._has_ended:
            raise StopIteration
        self._is_touched = True
        self._ask()
        while True:
            message = self._receive()
            if isinstance(message, Failed):
                raise self._failed(message.reason)
            if isinstance(message, Filled):
                self._num_received += 1
                self._is_holding = True
                if message.epoch == self._epoch:
                    return self._element(message.num_rows)
                self._release()
            elif isinstance(message, Ended) and message.epoch == self._epoch:
                self._has_ended = True
                raise StopIteration

    def stop(self) -> None:
        """Ends the worker; it may be called again."""
        self._finalizer()

    def _set_up(self) -> tuple[Ring, Any]:
        message = self._receive()
        if isinstance(message, Ready):
            file = self._link.receive_file()
            try:
                return Ring(message.layout, file), pickle.loads(message.pickled_template)
            finally:
                os.close(file)
        assert isinstance(message, Failed), f"The first message must not be {message}."
        self._await_end()
        raise make_error(
            "AsynchronousDataAccessor worker thread failed to start (Check above for details): "
            f"{message.reason}"
        )

    def _check_running(self) -> None:
        if self._failure is not None:
            raise AssertionError(self._failure)
        if not self._finalizer.still_active():
            raise make_error(
                "The data accessor was terminated: it has no worker any more. Create a new one."
            )

    def _failed(self, reason: str) -> AssertionError:
        self._await_end()
        self._failure = f"An error occurred in the data fetcher: {reason}"
        self.stop()
        return AssertionError(self._failure)

    def _await_end(self) -> None:
        # What the worker itself has to say comes above our error.
        self._process.join(_GRACE_SECONDS)

    def _ask(self) -> None:
        if self._asked_epoch < self._epoch:
            self._send(Begin(self._epoch))
            self._asked_epoch = self._epoch

    def _release(self) -> None:
        if self._is_holding:
            self._send(Released())
            self._is_holding = False

    def _send(self, message: Begin | Released) -> None:
        try:
            self._link.send(message)
        except LinkClosed:
            pass  # The worker has ended; what it said last is still to be received.

    def _receive(self) -> Ready | Filled | Ended | Failed:
        try:
            if not self._link.has_message():
                time.sleep(self._miss_sleep_seconds)
            message: Ready | Filled | Ended | Failed = self._link.receive()
        except LinkClosed:
            return Failed("its worker process ended without a word; was it killed?")
        return message

    def _element(self, num_rows: int | None) -> Any:
        tensors = self._ring.slot(self._num_received - 1)
        if num_rows is not None and num_rows != self._rebatched_rows:
            tensors = [tensor.narrow(0, 0, num_rows) for tensor in tensors]
        return rebuild(self._template, iter(tensors))


def _start_worker(
    dataset: Iterable[Any], settings: WorkerSettings, strategy: SharingStrategy
) -> tuple[Connection, BaseProcess]:
    context: Any = get_context(_START_METHOD[strategy])
    context.set_forkserver_preload(_SERVER_MODULES)
    connection, worker_connection = Pipe()
    close_when_forked(connection)
    with worker_connection, warnings.catch_warnings(), packed(dataset, strategy) as cargo:
        # Newer Pythons warn of forks beside threads; it is the user who chose `Fork`.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        try:
            process: BaseProcess = context.Process(
                target=run_worker,
                args=(worker_connection, cargo, settings),
                name="data accessor",
            )
            process.start()
        except BaseException:
            connection.close()
            raise
    return connection, process


def _stop_worker(process: BaseProcess, connection: Connection) -> None:
    """Closes the pipe, which ends the worker; signals it if it is too busy to notice."""
    connection.close()
    process.join(_GRACE_SECONDS)
    for number in _SIGNALS:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)
            process.join(_GRACE_SECONDS)
    if not process.is_alive():
        process.close()

"""The reading side of an asynchronous accessor, whose elements a worker process loads ahead.

`accessor_worker.py` is the other side. `ring_progress.py` says which side owns a slot of the ring.
A side that has waited for some time sleeps in the kernel until the other side changes its progress
or ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from poptorch_emu.data.accessor_link import Kind, Link, LinkClosed, new_links
from poptorch_emu.data.accessor_worker import WorkerSettings, run_worker
from poptorch_emu.data.batch_source import BatchSource
from poptorch_emu.data.dataset_pickling import picklable
from poptorch_emu.data.importable import (
    GUARD,
    UNGUARDED_STATUS,
    WORKER_NAME,
    check_importable,
    end_if_unguarded,
)
from poptorch_emu.data.ring import Ring, RingFile
from poptorch_emu.data.ring_progress import ReaderProgress, Record
from poptorch_emu.enums import SharingStrategy
from poptorch_emu.errors import make_error
from poptorch_emu.structure import rebuild
from poptorch_emu.troubleshooting import Topic

# Source: PopTorch reference, AsynchronousDataAccessor, `terminate`.
_GRACE_SECONDS = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Time of polling before the reader asks to be woken. Assumed: a shorter wait is cheaper by polling.
_LOOKING_SECONDS = 2e-3

# Longest sleep between two polls. Assumed: this delay is small beside elements that take longer.
_LONGEST_NAP_SECONDS = 1e-3
# Assumed: the first sleep grows faster than it shrinks, and settles within about ten elements.
_NAP_GROWTH, _NAP_SHRINKAGE = 1.25, 0.8

# A worker must end before multiprocessing joins it at exit, so its finaliser has a priority.
_EXIT_PRIORITY = 10

_START_METHOD = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}

# Modules that the fork server imports once, so that its workers need not import them.
_SERVER_MODULES = ["torch", run_worker.__module__]


_SILENT_END = (
    "its worker process ended without an error message. It may have been killed, for example "
    "because the computer ran out of memory."
)

# The status of a process of multiprocessing that could not read what it was sent.
_UNREADABLE_STATUS = 1
_UNREADABLE = (
    "its worker process failed while it imported the program and read the dataset. Define the "
    "dataset's classes and functions above `if __name__ == '__main__':`, or choose "
    f"poptorch.SharingStrategy.Fork; {Topic.UNSENDABLE_DATASET}"
)


class AccessorReader:
    """One worker and the ring that it fills; `begin` starts each iteration."""

    def __init__(
        self,
        source: BatchSource,
        settings: WorkerSettings,
        strategy: SharingStrategy,
        miss_sleep_seconds: float,
    ) -> None:
        """Starts the worker and waits for its first element.

        Args:
            source: dataset to iterate.
            settings: settings of the worker.
            strategy: strategy that sends the source to the worker.
            miss_sleep_seconds: shortest wait for an element that is not ready.

        Raises:
            Error: the worker ended before its first element.
        """
        self._rebatched_rows = settings.rebatched_rows
        self._sleeps_seconds = _sleeps_seconds(miss_sleep_seconds)
        self._nap_seconds = miss_sleep_seconds
        self._epoch = 0
        self._num_begun = 0
        self._is_touched = False
        self._has_ended = False
        self._is_holding = False
        self._num_received = 0
        self._failure: str | None = None
        self._last_words: str | None = None
        with closing(RingFile()) as file:
            self._link, self._process = _start_worker(file, source, settings, strategy)
            self._finalizer = Finalize(
                self, _stop_worker, (self._process, self._link), exitpriority=_EXIT_PRIORITY
            )
            try:
                self._ring, self._template = self._set_up(file)
            except BaseException:
                self.stop()
                raise
        self._progress = ReaderProgress(self._ring.words, settings.num_slots, self._link)

    def begin(self) -> None:
        """Starts from the beginning of the data.

        Raises:
            Error: the worker was stopped, or belongs to another process.
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
            StopIteration: the data has ended; `begin` starts it again.
            Error: the worker was stopped, or belongs to another process.
            AssertionError: the worker has failed.
        """
        self._check_running()
        self._release()
        if self._has_ended:
            raise StopIteration
        self._is_touched = True
        self._ask()
        while True:
            record = self._next_record()
            is_wanted = record.epoch == self._epoch
            if record.is_end:
                if is_wanted:
                    self._has_ended = True
                    raise StopIteration
            else:
                self._num_received += 1
                self._is_holding = True
                if is_wanted:
                    return self._element(record.num_rows)
                self._release()

    def stop(self) -> None:
        """Ends the worker. Further calls do nothing."""
        self._finalizer()

    def _set_up(self, file: RingFile) -> tuple[Ring, Any]:
        try:
            kind, content = self._link.receive()
        except LinkClosed:
            kind, content = Kind.FAILED, _SILENT_END
        if kind == Kind.READY:
            return Ring(content.layout, file), pickle.loads(content.pickled_template)
        self._await_end()
        if content is _SILENT_END and self._process.exitcode == _UNREADABLE_STATUS:
            content = _UNREADABLE
        if self._process.exitcode == UNGUARDED_STATUS:
            raise make_error(GUARD)
        _show(content)
        raise make_error(
            "AsynchronousDataAccessor worker thread failed to start (Check above for details): "
            f"{content}"
        )

    def _check_running(self) -> None:
        if self._failure is not None:
            raise AssertionError(self._failure)
        if self._link.is_closed:
            raise make_error(
                "The data accessor was terminated, or belongs to the process from which this one "
                "was forked: it has no worker here. Create a new one."
            )

    def _failed(self, reason: str) -> AssertionError:
        self._await_end()
        _show(reason)
        self._failure = f"An error occurred in the data fetcher: {reason}"
        self.stop()
        return AssertionError(self._failure)

    def _await_end(self) -> None:
        # Lets the worker print its own message before our error.
        self._process.join(_GRACE_SECONDS)

    def _ask(self) -> None:
        if self._num_begun <= self._epoch:
            self._num_begun = self._epoch + 1
            self._tell(lambda: self._progress.begin(self._num_begun))

    def _release(self) -> None:
        if self._is_holding:
            self._is_holding = False
            self._tell(self._progress.release)

    def _tell(self, change: Callable[[], None]) -> None:
        try:
            change()
        except LinkClosed:
            pass  # The worker has ended, but its last elements are still in the ring.

    def _next_record(self) -> Record:
        """Waits for a record and returns it.

        Frequent polling slows the worker down, most of all on a virtual machine, where each sleep
        costs both sides time. So the first sleep grows until it is as long as an element takes, and
        shrinks if the worker may have run out of slots meanwhile.
        """
        progress = self._progress
        if not progress.num_waiting:
            time.sleep(self._nap_seconds)
            shortest_seconds = self._sleeps_seconds[0]
            if not progress.num_waiting:
                longest_seconds = max(_LONGEST_NAP_SECONDS, shortest_seconds)
                grown_seconds = min(_NAP_GROWTH * self._nap_seconds, longest_seconds)
                self._nap_seconds = grown_seconds if self._look() else shortest_seconds
            elif progress.is_full:
                self._nap_seconds = max(_NAP_SHRINKAGE * self._nap_seconds, shortest_seconds)
        return progress.take()

    def _look(self) -> bool:
        """Polls for a record; returns whether one came before the time for polling was over."""
        for seconds in self._sleeps_seconds:
            time.sleep(seconds)
            if self._progress.num_waiting:
                return True
        while not self._progress.num_waiting:
            self._await_record()
        return False

    def _await_record(self) -> None:
        if self._last_words is not None:
            raise self._failed(self._last_words)
        try:
            self._last_words = self._progress.wait(lambda: self._progress.num_waiting > 0)
        except LinkClosed:
            self._check_running()  # Another thread may have stopped it.
            self._last_words = _SILENT_END

    def _element(self, num_rows: int) -> Any:
        tensors = self._ring.slot(self._num_received - 1)
        if num_rows not in (0, self._rebatched_rows):
            tensors = [tensor.narrow(0, 0, num_rows) for tensor in tensors]
        return rebuild(self._template, iter(tensors))


def _sleeps_seconds(first_seconds: float) -> list[float]:
    """Returns the lengths of the sleeps between two polls, before the reader asks to be woken.

    Each sleep is about as long as all sleeps before it. So a reader that is late for one element
    finds the next one without any sleep.
    """
    sleeps = [first_seconds]
    while 0 < sum(sleeps) < _LOOKING_SECONDS:
        sleeps.append(2 * sleeps[-1])
    return sleeps


def _start_worker(
    file: RingFile, source: BatchSource, settings: WorkerSettings, strategy: SharingStrategy
) -> tuple[Link, BaseProcess]:
    end_if_unguarded()
    if strategy is not SharingStrategy.Fork:
        check_importable(source)
    context: Any = get_context(_START_METHOD[strategy])
    context.set_forkserver_preload(_SERVER_MODULES)
    link, worker_link = new_links()
    link.close_when_forked()
    worker_link.close_when_forked(unless_by_this_thread=True)
    with closing(worker_link), warnings.catch_warnings(), picklable(source, strategy) as sent:
        # Newer Pythons warn of forks beside threads; it is the user who chose `Fork`.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        try:
            process: BaseProcess = context.Process(
                target=run_worker,
                args=(worker_link, file, sent, settings),
                name=WORKER_NAME,
            )
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as cause:
            link.close()
            raise make_error(
                f"The dataset cannot be sent to the worker process that {strategy.name} starts: "
                f"{cause}. Define its functions and classes at the top of a module, or choose "
                f"poptorch.SharingStrategy.Fork, which sends nothing; {Topic.UNSENDABLE_DATASET}"
            ) from cause
        except BrokenPipeError:  # The process ended before it had read its arguments.
            link.close()
            raise make_error(f"The worker process could not be started. {GUARD}") from None
        except BaseException:
            link.close()
            raise
    return link, process


def _show(reason: str) -> None:
    """Prints the worker's failure to the standard output, as PopTorch's worker does."""
    print(reason, flush=True)


def _stop_worker(process: BaseProcess, link: Link) -> None:
    """Closes the pipes, which ends the worker; signals it if it is too busy to notice."""
    link.close()
    process.join(_GRACE_SECONDS)
    for number in _SIGNALS:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)
            process.join(_GRACE_SECONDS)
    if not process.is_alive():
        process.close()

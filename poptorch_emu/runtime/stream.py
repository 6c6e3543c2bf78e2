"""Reads the results of a call while the call is still running.

The call runs in another thread without the GIL. The engine hands over the results of one device
iteration after another, and pauses when too many are unread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from poptorch_emu import _C
from poptorch_emu.errors import make_error


class CallState:
    """Whether a call of the engine runs, and whether it does in another process.

    Attributes:
        is_running: whether the call has not ended yet.
        is_lost: whether this is a forked process, where no thread continues the call.
    """

    def __init__(self) -> None:
        """Starts without a call."""
        self.is_running = False
        self.is_lost = False
        _calls.add(self)


class RunningCall(CallState):
    """One call of the engine in a thread that runs nothing else meanwhile."""

    def __init__(self, run: Callable[[], object]) -> None:
        """Starts `run`."""
        super().__init__()
        self._run = run
        self.is_running = True
        self._error: BaseException | None = None
        self._end = threading.Event()
        _idle_or_new().calls.put(self)

    def wait(self) -> BaseException | None:
        """Waits for the end of the call; returns its exception once."""
        self._end.wait()
        error, self._error = self._error, None
        return error

    def main(self) -> None:
        """Runs the call, on a thread for calls."""
        try:
            self._run()
        except BaseException as error:
            self._error = error
        self.is_running = False

    def end(self) -> None:
        """Wakes the threads that wait for the end."""
        self._end.set()


class _CallThread:
    """A thread that runs one call after another.

    It is reused, because PyTorch and its libraries create state for each new thread.
    """

    def __init__(self) -> None:
        self.calls: SimpleQueue[RunningCall] = SimpleQueue()
        threading.Thread(target=self._main, name="streamed calls", daemon=True).start()

    def _main(self) -> None:
        while True:
            call = self.calls.get()
            call.main()
            _idle.append(self)
            call.end()
            del call  # Frees its inputs.


# All existing calls, because a forked child must end those that were running: their threads stay in
# the parent process. `_idle` holds the threads without a call.
_calls: weakref.WeakSet[CallState] = weakref.WeakSet()
_idle: list[_CallThread] = []


def _idle_or_new() -> _CallThread:
    try:
        return _idle.pop()
    except IndexError:
        return _CallThread()


def _lose_calls() -> None:
    _idle.clear()
    for call in list(_calls):
        call.is_lost = call.is_running


os.register_at_fork(after_in_child=_lose_calls)


class Bundle(NamedTuple):
    """Several results in a row.

    Attributes:
        num_results: number of results.
        values: values in the structure of `forward`. Tensors of the device have a first axis for
            the results; a tensor that never was on the device occurs once.
    """

    num_results: int
    values: Any


class ResultStream:
    """An iterator over the results of a call, one for each device iteration, in order.

    A result has the structure that `forward` returned. Its tensors hold the values of the
    iteration's micro-batches, as if a call with one device iteration returned them.
    """

    def __init__(
        self,
        executor: _C.Executor,
        call: RunningCall,
        structured: Callable[[Sequence[torch.Tensor]], Any],
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """Takes over a call that has begun to stream; `at_end` is called if the call succeeds."""
        self._executor = executor
        self._call = call
        self._structured = structured
        self._at_end = at_end
        self._finalizer = weakref.finalize(self, _finish, executor, call)

    def __repr__(self) -> str:
        state = "of a call that runs" if self._finalizer.alive else "of a call that has ended"
        return f"<results {state}: iterate to read them>"

    def __iter__(self) -> ResultStream:
        return self

    def __next__(self) -> Any:
        """Returns the next result, as soon as it is complete.

        Raises:
            StopIteration: the call has ended, or the stream was closed.
            Error: the call failed after the results returned so far, or it runs in the process from
                which this one was forked.
        """
        self._check_process()
        result = self._executor.take_result() if self._finalizer.alive else []
        if result:
            return self._structured(result)
        self.close()
        raise StopIteration

    def complete(self) -> Iterator[Bundle]:
        """Yields the results that are complete and were not returned yet, without waiting."""
        self._check_process()
        if self._finalizer.alive:
            count, results = self._executor.take_results()
            if count:
                yield Bundle(count, self._structured(results))

    def bundles(self, linger_seconds: float) -> Iterator[Bundle]:
        """Yields several results at a time, so that the caller is woken less often.

        Args:
            linger_seconds: time in seconds to wait for more results each time.

        Raises:
            Error: see `__next__`.
        """
        while self._finalizer.alive:
            self._check_process()
            count, results = self._executor.wait_for_results(round(linger_seconds * 1e6))
            if not count:
                self.close()
                return
            yield Bundle(count, self._structured(results))

    def _check_process(self) -> None:
        if self._call.is_lost:
            raise make_error(
                "These results belong to a call of the process from which this one was forked. "
                "Read them there, and wrap the model anew here."
            )

    def close(self) -> None:
        """Drops all further results and waits for the end of the call, which runs to its end.

        So a training model has learnt from the whole batch, and device and host agree.

        Raises:
            Error: the call or `at_end` failed.
        """
        if self._finalizer.detach() is not None:
            error = _finish(self._executor, self._call)
            if error is not None:
                raise error
            if self._at_end is not None and not self._call.is_lost:
                self._at_end()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _finish(executor: _C.Executor, call: RunningCall) -> BaseException | None:
    if call.is_lost:
        return None
    executor.end_stream()
    return call.wait()

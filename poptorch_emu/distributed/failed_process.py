"""The first failure of a process: its record in the store, and a thread that watches for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from poptorch_emu.distributed.message_store import MessageStore
from poptorch_emu.untrusted.json_types import COUNT, type_fault
from poptorch_emu.untrusted.texts import printable

_KEY = "failure"
_TYPES = {"process": COUNT, "host": str, "line": str}
_PERIOD_SECONDS = 0.1
# Grace time after the holder of the store has left, so that an exchange which is nearly done can
# end.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Failure:
    """The first failure of all processes."""

    process: int
    host: str
    line: str

    def __str__(self) -> str:
        where = f"Process {self.process} on {printable(self.host)}"
        return f"{where} failed: {printable(self.line)}"


def record(store: MessageStore, failure: Failure) -> Failure:
    """Writes a failure to the store unless it has one; returns the first failure."""
    return _failure(store.write_first(_KEY, json.dumps(asdict(failure)))) or failure


def find(store: MessageStore) -> Failure | None:
    """Returns the failure in the store; `None` if it has none."""
    message = store.read(_KEY)
    return None if message is None else _failure(message)


def _failure(message: str) -> Failure | None:
    """Returns the failure that a message describes; `None` if the message is malformed."""
    try:
        told = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if type_fault(told, _TYPES, "failure"):
        return None
    return Failure(told["process"], told["host"], told["line"])


class Watcher:
    """A thread that polls the store for a failure."""

    def __init__(
        self, store: MessageStore, process: int, holder: str, on_failure: Callable[[Failure], None]
    ) -> None:
        """Starts the thread.

        Args:
            store: connection to the store that only the thread uses.
            process: number of this process.
            holder: host of process 0, which holds the store if no launcher does.
            on_failure: function that the thread calls once, with the failure.
        """
        self._store = store
        self._process = process
        self._holder = holder
        self._on_failure = on_failure
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="poptorch failures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._is_over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)

    def _look(self) -> None:
        while not self._is_over.wait(_PERIOD_SECONDS):
            try:
                failure = find(self._store)
                if failure is not None:
                    self._store.write(f"seen/{self._process}", "")
            except (RuntimeError, ValueError):
                if self._is_over.wait(_GRACE_SECONDS):
                    return
                failure = Failure(
                    0,
                    self._holder,
                    "it ended, and with it the store through which processes exchange messages",
                )
            if failure is not None:
                self._on_failure(failure)
                return


def wait_until_seen(store: MessageStore, processes: list[int], seconds: float) -> None:
    """Waits until these processes have seen a failure, so that the store's holder may end."""
    deadline = time.monotonic() + seconds
    left = set(processes)
    while left and time.monotonic() < deadline:
        left = {process for process in left if store.read(f"seen/{process}") is None}
        time.sleep(_PERIOD_SECONDS if left else 0.0)

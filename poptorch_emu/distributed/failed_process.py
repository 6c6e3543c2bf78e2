"""What is known of processes that failed: a record in the store, and a thread that looks for it."""

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
# An exchange that is nearly done is not disturbed when the holder of the store has left.
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
    """Puts a failure into the store, unless there is one; returns the first one."""
    return _failure(store.write_first(_KEY, json.dumps(asdict(failure)))) or failure


def find(store: MessageStore) -> Failure | None:
    """Returns what the store has."""
    message = store.read(_KEY)
    return None if message is None else _failure(message)


def _failure(message: str) -> Failure | None:
    """Returns the failure that a message tells of, `None` if it tells of none."""
    try:
        told = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if type_fault(told, _TYPES, "failure"):
        return None
    return Failure(told["process"], told["host"], told["line"])


class Watcher:
    """Looks for a failure until there is one, in a thread of its own."""

    def __init__(
        self, store: MessageStore, process: int, holder: str, on_failure: Callable[[Failure], None]
    ) -> None:
        """Begins to look.

        Args:
            store: a connection that nobody else uses.
            process: the number of this process.
            holder: the host of process 0, which holds the store where no launcher does.
            on_failure: called once, in the thread.
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
                failure = Failure(0, self._holder, "it ended, and the store that it held with it")
            if failure is not None:
                self._on_failure(failure)
                return


def wait_until_seen(store: MessageStore, processes: list[int], seconds: float) -> None:
    """Waits until these processes know of a failure, so that the store's holder may end."""
    deadline = time.monotonic() + seconds
    left = set(processes)
    while left and time.monotonic() < deadline:
        left = {process for process in left if store.read(f"seen/{process}") is None}
        time.sleep(_PERIOD_SECONDS if left else 0.0)

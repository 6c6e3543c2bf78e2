"""What is known of processes that failed: a record in the store, and a thread that looks for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from poptorch_emu.torch_versions import Store

KEY = "failure"
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
        return f"Process {self.process} on {self.host} failed: {self.line}"


def record(store: Store, failure: Failure) -> Failure:
    """Puts a failure into the store, unless there is one; returns the first one."""
    kept = store.compare_set(KEY, "", json.dumps(asdict(failure)))
    return Failure(**json.loads(kept))


def find(store: Store) -> Failure | None:
    """Returns what the store has."""
    return Failure(**json.loads(store.get(KEY))) if store.check([KEY]) else None


class Watcher:
    """Looks for a failure until there is one, in a thread of its own."""

    def __init__(
        self, store: Store, process: int, holder: str, on_failure: Callable[[Failure], None]
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
                    self._store.set(f"seen/{self._process}", "")
            except (RuntimeError, ValueError):
                if self._is_over.wait(_GRACE_SECONDS):
                    return
                failure = Failure(0, self._holder, "it ended, and the store that it held with it")
            if failure is not None:
                self._on_failure(failure)
                return


def wait_until_seen(store: Store, processes: list[int], seconds: float) -> None:
    """Waits until these processes know of a failure, so that the store's holder may end."""
    deadline = time.monotonic() + seconds
    keys = [f"seen/{process}" for process in processes]
    while not store.check(keys) and time.monotonic() < deadline:
        time.sleep(_PERIOD_SECONDS)

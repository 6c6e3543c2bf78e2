"""When modules of the package are loaded: late where few programs ask, else all at once."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LateModule:
    """Stands for a module that is imported when one of its names is asked for, by any thread.

    For type checkers, the file that makes one imports the module under `TYPE_CHECKING`.
    """

    def __init__(self, name: str) -> None:
        """Takes the full name of the module."""
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Lets modules be loaded, or plans be made, without a garbage collection in between.

    That makes no garbage, but enough objects that Python would look through all of PyTorch's,
    which takes as long as half of the loading itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

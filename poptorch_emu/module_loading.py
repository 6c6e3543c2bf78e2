"""Late loading of modules that few programs use, and loading without garbage collection."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LateModule:
    """Stand-in for a module that is imported when a thread first reads one of its names.

    For type checkers, the file that creates it also imports the module under `TYPE_CHECKING`.
    """

    def __init__(self, name: str) -> None:
        """Stores the full name of the module."""
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disables garbage collection while modules are loaded, models compiled or plans created.

    This work creates little garbage but many objects. Python would therefore scan all objects of
    PyTorch, which takes half as long as the work itself.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Modules that most programs never ask for: they are loaded when one of their names is needed."""

from __future__ import annotations

import importlib
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

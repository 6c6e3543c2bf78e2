"""Loads what knows PyTorch's pipelining when it is first needed: that takes some seconds."""

from __future__ import annotations

import importlib
from typing import Any


def plain() -> Any:
    """Returns the module `export/plain.py`."""
    return importlib.import_module("poptorch_emu.export.plain")

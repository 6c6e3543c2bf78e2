"""The index of the current replica."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.ipu.ops.replicas import index

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """Returns the index of the replica, from 0, as an int32 tensor (exact).

    Args:
        name: accepted.
    """
    return index()

"""Which replica this is."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.ipu.ops.replicas import index

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """Returns the number of the replica, from 0, as a tensor of int32 (exact).

    Args:
        name: accepted.
    """
    return index()

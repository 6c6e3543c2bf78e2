"""The index of the current replica."""

from __future__ import annotations

from typing import Any

from keras import ops

from poptorch_emu.keras.ipu.ops.replicas import exchanged, num_replicas

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """Returns the index of the replica, from 0, as an int32 tensor (exact).

    Args:
        name: accepted.
    """
    count = num_replicas()
    return exchanged(ops.arange(count, dtype="int32"), count)[0]

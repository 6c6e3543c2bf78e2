"""Which replica this is."""

from __future__ import annotations

from typing import Any

from keras import ops

from poptorch_emu.keras.ipu.ops.single_replica import require_single_replica

__all__ = ["replication_index"]


def replication_index(name: str | None = None) -> Any:
    """Returns the number of the replica (exact; several are refused).

    Args:
        name: accepted.

    Raises:
        Error: there are several replicas.
    """
    require_single_replica("replication_ops.replication_index")
    return ops.zeros((), dtype="int32")

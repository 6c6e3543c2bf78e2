"""`popdist`: index and number of processes, from the variables of `poprun` or torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from poptorch_emu.distributed.connection import connect, connection
from poptorch_emu.distributed.launch_environment import is_launched, read_launch
from poptorch_emu.log import logger

__all__ = [
    "execute_on_instances",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "init",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "synchronize",
]

_is_initialized = False


def init(*_: Any, **__: Any) -> None:
    """Joins the other processes by torch.distributed; a second call does nothing (exact).

    An existing default group is used. Arguments are accepted.

    Raises:
        Error: another process is not found, or the variables contradict each other.
    """
    global _is_initialized
    launch = read_launch()
    if launch.num_instances > 1:
        connect(launch.index, launch.num_instances)
    else:
        logger.info("popdist.init: one process, nothing to connect.")
    _is_initialized = True


def isBackendInitialized() -> bool:
    """Returns whether `init` was called or a model has joined the other processes (exact)."""
    return _is_initialized or connection() is not None


def isPopdistEnvSet() -> bool:
    """Returns whether a launcher started this process (exact)."""
    return is_launched()


def getInstanceIndex() -> int:
    """Returns the index of this process (exact)."""
    return read_launch().index


def getNumInstances() -> int:
    """Returns the number of processes (exact)."""
    return read_launch().num_instances


def getNumTotalReplicas() -> int:
    """Returns the number of replicas of all processes together (exact)."""
    launch = read_launch()
    return launch.num_instances * launch.num_local_replicas


def getNumLocalReplicas() -> int:
    """Returns the number of replicas of this process (exact)."""
    return read_launch().num_local_replicas


def getNumIpusPerReplica() -> int:
    """Returns the number of IPUs that the launcher assigns to each replica (exact)."""
    return read_launch().num_ipus_per_replica


def synchronize(*_: Any, **__: Any) -> None:
    """Waits until all processes have called this function equally often (exact).

    Raises:
        Error: another process failed meanwhile or did not answer in time.
    """
    if getNumInstances() > 1:
        connect(getInstanceIndex(), getNumInstances()).synchronize()


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls `function` if this process is one of `instances`; otherwise returns `None` (exact)."""
    return function(*args, **kwargs) if getInstanceIndex() in set(instances) else None

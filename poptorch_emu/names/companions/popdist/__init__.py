"""`popdist`: which of several processes this is. There is one process, with one replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
    """Gets ready for work in several processes (accepted: there is one)."""
    global _is_initialized
    logger.info("popdist.init: one process, nothing to connect.")
    _is_initialized = True


def isBackendInitialized() -> bool:
    """Returns whether `init` was called (exact)."""
    return _is_initialized


def isPopdistEnvSet() -> bool:
    """Returns whether a launcher started this process: never (accepted)."""
    return False


def getInstanceIndex() -> int:
    """Returns the number of this process (exact for one process)."""
    return 0


def getNumInstances() -> int:
    """Returns how many processes there are (exact for one process)."""
    return 1


def getNumTotalReplicas() -> int:
    """Returns how many replicas all processes have (exact for one process)."""
    return 1


def getNumLocalReplicas() -> int:
    """Returns how many replicas this process has (exact for one process)."""
    return getNumTotalReplicas() // getNumInstances()


def getNumIpusPerReplica() -> int:
    """Returns how many IPUs a replica has unless `Options` says so (exact for one process)."""
    return 1


def synchronize(*_: Any, **__: Any) -> None:
    """Waits for the other processes: there are none (exact for one process)."""


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls `function` if this process is one of `instances`; else returns `None` (exact)."""
    return function(*args, **kwargs) if getInstanceIndex() in set(instances) else None

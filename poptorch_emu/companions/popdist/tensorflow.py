"""`popdist.tensorflow`: the configuration of a process that a launcher started."""

from __future__ import annotations

from typing import Any

from poptorch_emu.companions import popdist

__all__ = ["set_ipu_config"]


def set_ipu_config(
    config: Any, ipus_per_replica: int | None = None, configure_device: bool = True
) -> Any:
    """Sets the IPUs and the process of a configuration as the launcher decided (exact).

    Args:
        config: an `IPUConfig`, which is changed.
        ipus_per_replica: number of IPUs of a replica; by default the launcher's number.
        configure_device: whether to call `configure_ipu_system` of the configuration, too.

    Returns:
        The configuration.

    Raises:
        ValueError: `ipus_per_replica` is not positive.
    """
    per_replica = popdist.getNumIpusPerReplica() if ipus_per_replica is None else ipus_per_replica
    if per_replica < 1:
        raise ValueError(f"ipus_per_replica must be 1 or more, not {per_replica}.")
    config.auto_select_ipus = popdist.getNumLocalReplicas() * per_replica
    distribution = config.experimental.multi_replica_distribution
    distribution.process_count = popdist.getNumInstances()
    distribution.process_index = popdist.getInstanceIndex()
    if configure_device:
        config.configure_ipu_system()
    return config

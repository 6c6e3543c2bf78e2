"""`popdist.tensorflow`: the configuration of a process that a launcher started."""

from __future__ import annotations

from typing import Any

from poptorch_emu.companions import popdist

__all__ = ["set_ipu_config"]


def set_ipu_config(
    config: Any, ipus_per_replica: int | None = None, configure_device: bool = True
) -> Any:
    """Gives a configuration this process's IPUs, as the launcher decided (exact).

    Args:
        config: an `IPUConfig`, which is changed.
        ipus_per_replica: by default as many as the launcher gives a replica.
        configure_device: whether `configure_ipu_system` of the configuration is called, too.

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

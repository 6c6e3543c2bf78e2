"""`popdist.poptorch`: options whose numbers of processes and replicas come from the launcher."""

from __future__ import annotations

from typing import NoReturn

from poptorch_emu import options
from poptorch_emu.companions import popdist

__all__ = ["Options"]


class _Distributed(options._DistributedOptions):
    """Number and index of processes, as the launcher set them."""

    def __init__(self) -> None:
        options.OptionsDict.__init__(
            self,
            num_distributed_processes=popdist.getNumInstances(),
            distributed_process_id=popdist.getInstanceIndex(),
            ipuof_configs={},
        )

    def disable(self) -> NoReturn:
        """Raises an error, because the launcher starts several processes."""
        raise _refusal("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> NoReturn:
        """Raises an error, because the launcher sets these variables."""
        raise _refusal("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> NoReturn:
        """Raises an error, because the launcher numbers the processes."""
        raise _refusal("Distributed.configureProcessId")


class Options(options.Options):
    """`poptorch.Options` for a process that a launcher started (exact).

    The replication factor is the number of replicas of this process. Values that the launcher sets
    cannot be changed.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        """Creates options with default values.

        Args:
            ipus_per_replica: number of IPUs of a replica (accepted: the model's blocks decide it).

        Raises:
            ValueError: `ipus_per_replica` is not positive.
        """
        if ipus_per_replica is not None and ipus_per_replica < 1:
            raise ValueError(f"ipus_per_replica must be 1 or more, but it is {ipus_per_replica}.")
        super().__init__()
        self._distributed = _Distributed()
        self.set(replication_factor=popdist.getNumLocalReplicas())

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Raises an error, because the launcher assigns the IPUs."""
        raise _refusal("useIpuId")

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Raises an error, because the launcher sets the number of replicas."""
        raise _refusal("replicationFactor")


def _refusal(name: str) -> RuntimeError:
    return RuntimeError(
        f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides it. "
        "Use poptorch.Options to set it by hand."
    )

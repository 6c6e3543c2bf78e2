"""`popdist.poptorch`: options whose numbers of processes and replicas the launcher decides."""

from __future__ import annotations

from typing import NoReturn

from poptorch_emu import options
from poptorch_emu.companions import popdist

__all__ = ["Options"]


class _Distributed(options._DistributedOptions):
    """Processes as the launcher made them."""

    def __init__(self) -> None:
        options.OptionsDict.__init__(
            self,
            num_distributed_processes=popdist.getNumInstances(),
            distributed_process_id=popdist.getInstanceIndex(),
            ipuof_configs={},
        )

    def disable(self) -> NoReturn:
        """Refuses: the launcher decides."""
        raise _refusal("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> NoReturn:
        """Refuses: the launcher decides."""
        raise _refusal("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> NoReturn:
        """Refuses: the launcher decides."""
        raise _refusal("Distributed.configureProcessId")


class Options(options.Options):
    """`poptorch.Options` for a process of a launcher (exact).

    The replication factor is that of this process; what the launcher decides cannot be set.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        """Starts with the defaults.

        Args:
            ipus_per_replica: how many IPUs a replica has (accepted: the model's blocks decide it).

        Raises:
            ValueError: `ipus_per_replica` is not positive.
        """
        if ipus_per_replica is not None and ipus_per_replica < 1:
            raise ValueError(f"ipus_per_replica must be 1 or more, but it is {ipus_per_replica}.")
        super().__init__()
        self._distributed = _Distributed()
        self.set(replication_factor=popdist.getNumLocalReplicas())

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Refuses: the launcher decides."""
        raise _refusal("useIpuId")

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Refuses: the launcher decides."""
        raise _refusal("replicationFactor")


def _refusal(name: str) -> RuntimeError:
    return RuntimeError(
        f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides it. "
        "Use poptorch.Options to set it by hand."
    )

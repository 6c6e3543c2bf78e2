"""`Options.Distributed`: index and number of processes."""

from __future__ import annotations

from poptorch_emu.environment import integer_of
from poptorch_emu.options.base import COUNTS, OptionsDict


class _DistributedOptions(OptionsDict, path="options.Distributed"):
    """Options of a run in several processes (exact).

    Defaults come from OpenMPI's environment. A training model joins the other processes when it
    attaches to its device.
    """

    _counts = {
        "num_distributed_processes": (
            "num_processes of poptorch.Options.Distributed.configureProcessId",
            COUNTS,
        ),
        "distributed_process_id": (
            "process_id of poptorch.Options.Distributed.configureProcessId",
            range(2**31),
        ),
    }

    def __init__(self) -> None:
        """Reads `OMPI_COMM_WORLD_SIZE` and `OMPI_COMM_WORLD_RANK`."""
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Makes this the only process (exact)."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Reads number and id of processes from environment variables; defaults 1, 0 (exact).

        Raises:
            Error: a variable is not an integer, or is too small.
        """
        return self.configureProcessId(
            integer_of(var_process_id, 0, at_least=0), integer_of(var_num_processes, 1, at_least=1)
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Sets the id of this process and the number of processes (exact)."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """The id of this process, from 0 (exact)."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """The number of processes (exact)."""
        return int(self.num_distributed_processes)

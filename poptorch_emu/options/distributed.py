"""`Options.Distributed`: which process of how many this is."""

from __future__ import annotations

from poptorch_emu.environment import integer_of
from poptorch_emu.options.base import OptionsDict


class _DistributedOptions(OptionsDict, path="options.Distributed"):
    """Options of a run in several processes (exact).

    The defaults come from OpenMPI's environment. A model that trains joins the other processes when
    it gets its device.
    """

    def __init__(self) -> None:
        """Reads `OMPI_COMM_WORLD_SIZE` and `OMPI_COMM_WORLD_RANK`."""
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Makes this the only process (exact)."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Reads count and id from environment variables, 1 and 0 where they are not set (exact).

        Raises:
            Error: a variable is no such number.
        """
        return self.configureProcessId(
            integer_of(var_process_id, 0, at_least=0), integer_of(var_num_processes, 1, at_least=1)
        )

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """Sets both by hand (exact)."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """The id of this process, from 0 (exact)."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """How many processes there are (exact)."""
        return int(self.num_distributed_processes)

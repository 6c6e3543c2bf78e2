"""The number of threads of the engine, and the order of their work in a window.

No result depends on either.
"""

from __future__ import annotations

import os
from enum import Enum

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.environment import choice_of, integer_of

# Environment variable for the number of threads that run virtual IPUs; results don't depend on it.
_WORKERS = "POPTORCH_EMU_WORKERS"

# Environment variable for the order of the work; results don't depend on it.
_ORDER = "POPTORCH_EMU_ORDER"


class Order(Enum):
    """The order of the workers' work in a window.

    Attributes:
        SCHEDULE: each virtual IPU runs its list of actions, as on the machine.
        MICRO_BATCHES: a worker takes a micro-batch through all stages, if results are the same.
    """

    SCHEDULE = "schedule"
    MICRO_BATCHES = "micro-batches"


def order_of(config: CompileConfig) -> Order:
    """Returns the order in the environment; with a profile it is always that of the schedule."""
    if config.profile_dir is not None:
        return Order.SCHEDULE
    return choice_of(_ORDER, Order, Order.MICRO_BATCHES)


def thread_counts(
    num_virtual_ipus: int, num_independent: int = 1, *, has_network: bool = False
) -> tuple[int, int]:
    """Returns (number of threads that run virtual IPUs, number of threads for one operation).

    A single virtual IPU uses all cores for each operation, unless its micro-batches keep all cores
    busy. Otherwise each operation runs on one thread, because two small operations at once are
    faster than two threads on one. Results cannot depend on the number of workers, because it only
    changes which thread runs an action. Replicas of other processes need one more worker, which
    waits for the network.

    Args:
        num_virtual_ipus: number of IPUs of all replicas.
        num_independent: number of micro-batches of all replicas that may run at once in a window.
        has_network: whether there are other processes.

    Raises:
        Error: the number of workers in the environment is not a positive integer.
    """
    cores = len(os.sched_getaffinity(0))
    asked = integer_of(_WORKERS, cores, at_least=1) if os.environ.get(_WORKERS) else cores
    if num_virtual_ipus == 1 and num_independent < cores and not has_network:
        return 1, torch.get_num_threads()
    return min(asked, max(num_virtual_ipus, num_independent)) + has_network, 1

"""How many threads the engine has, and in which order they do what a window has to do.

No result depends on either.
"""

from __future__ import annotations

import os
from enum import Enum

import torch

from poptorch_emu.config import CompileConfig
from poptorch_emu.environment import choice_of, integer_of

# Environment: how many threads run virtual IPUs; results never depend on it.
_WORKERS = "POPTORCH_EMU_WORKERS"

# Environment: what runs when; no result depends on it.
_ORDER = "POPTORCH_EMU_ORDER"


class Order(Enum):
    """In which order workers do what a window has to do.

    Attributes:
        SCHEDULE: each virtual IPU works through its list of actions, as on the machine.
        MICRO_BATCHES: a worker takes a micro-batch through all stages, where results can't show it.
    """

    SCHEDULE = "schedule"
    MICRO_BATCHES = "micro-batches"


def order_of(config: CompileConfig) -> Order:
    """Returns the order that the environment chooses; a profile is to show the schedule."""
    if config.profile_dir is not None:
        return Order.SCHEDULE
    return choice_of(_ORDER, Order, Order.MICRO_BATCHES)


def thread_counts(
    num_virtual_ipus: int, num_independent: int = 1, *, has_network: bool = False
) -> tuple[int, int]:
    """Returns how many threads run virtual IPUs, and how many one operation may use.

    One virtual IPU has all cores for an operation, unless its micro-batches keep all of them busy.
    Otherwise each operation runs on one thread: two small operations at once are faster than two
    threads on one, and results cannot depend on how many workers there are, since that changes only
    who runs what. Replicas of other processes count as well, and a worker more waits for the
    network.

    Args:
        num_virtual_ipus: IPUs of all replicas.
        num_independent: micro-batches of a window, of all replicas, that may be under way at once.
        has_network: whether there are other processes.

    Raises:
        Error: the number of workers that the environment asks for is none.
    """
    cores = len(os.sched_getaffinity(0))
    asked = integer_of(_WORKERS, cores, at_least=1) if os.environ.get(_WORKERS) else cores
    if num_virtual_ipus == 1 and num_independent < cores and not has_network:
        return 1, torch.get_num_threads()
    return min(asked, max(num_virtual_ipus, num_independent)) + has_network, 1

"""The processes that a launcher starts, with their environment variables."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from poptorch_emu.distributed.launch_environment import (
    IPUS,
    LOCAL,
    LOCAL_INDEX,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    OFFSET,
    RANK,
    TOTAL,
    UNIFORM,
    WORLD_SIZE,
)
from poptorch_emu.errors import make_error

_THIS_HOST = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Instance:
    """One process to be started.

    Attributes:
        index: number of the process.
        host: name of the host, as the user wrote it.
        local_index: number of the process on its host.
        num_on_host: number of processes on its host.
        variables: environment variables of the process.
    """

    index: int
    host: str
    local_index: int
    num_on_host: int
    variables: dict[str, str]

    @property
    def is_here(self) -> bool:
        """Whether the process runs on the launcher's host."""
        return self.host in _THIS_HOST or self.host == socket.gethostname()


def plan_instances(
    num_instances: int,
    num_replicas: int | None,
    ipus_per_replica: int,
    hosts: Sequence[str],
    instances_per_host: int | None,
) -> list[Instance]:
    """Returns the processes in order, host by host.

    Raises:
        Error: a number is below 1, the replicas cannot be divided among the processes, or the hosts
            are too few.
    """
    total = num_instances if num_replicas is None else num_replicas
    for name, number in {
        "--num-instances": num_instances,
        "--num-replicas": total,
        "--ipus-per-replica": ipus_per_replica,
        "--instances-per-host": 1 if instances_per_host is None else instances_per_host,
    }.items():
        if number < 1:
            raise make_error(f"{name} must be at least 1, not {number}.")
    if total % num_instances:
        raise make_error(
            f"{total} replicas cannot be divided among {num_instances} instances: --num-replicas "
            "must be a multiple of --num-instances."
        )
    per_host = instances_per_host or -(-num_instances // len(hosts))
    if per_host * len(hosts) < num_instances:
        raise make_error(
            f"{num_instances} instances need more than {len(hosts)} hosts with {per_host} each. "
            "Name more in --host, or raise --instances-per-host."
        )
    return [
        _instance(index, num_instances, total // num_instances, ipus_per_replica, hosts, per_host)
        for index in range(num_instances)
    ]


def _instance(
    index: int, count: int, num_local: int, num_ipus: int, hosts: Sequence[str], per_host: int
) -> Instance:
    local_index = index % per_host
    num_on_host = min(per_host, count - (index - local_index))
    return Instance(
        index,
        hosts[index // per_host],
        local_index,
        num_on_host,
        {
            TOTAL: str(count * num_local),
            LOCAL: str(num_local),
            IPUS: str(num_ipus),
            OFFSET: str(index * num_local),
            LOCAL_INDEX: str(local_index),
            UNIFORM: "1",
            WORLD_SIZE: str(count),
            RANK: str(index),
            LOCAL_RANK: str(local_index),
            LOCAL_WORLD_SIZE: str(num_on_host),
        },
    )

"""Environment variables of a launcher: those of `poprun`, otherwise those of torchrun."""

from __future__ import annotations

import os
from dataclasses import dataclass

from poptorch_emu.environment import integer_of
from poptorch_emu.errors import make_error

TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
LOCAL_INDEX = "POPDIST_LOCAL_INSTANCE_INDEX"
UNIFORM = "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
)
SECRET = "POPTORCH_EMU_SECRET"
_LEAST_SECRET = 16
_OPTIONS = "Options.Distributed, which OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE set"


@dataclass(frozen=True)
class Launch:
    """The number of this process (instance) among all that the launcher started.

    Attributes:
        local_index: number of the instance on this machine.
        num_local_replicas: replicas of each instance.
        num_on_host: number of instances on this machine.
    """

    index: int = 0
    num_instances: int = 1
    local_index: int = 0
    num_local_replicas: int = 1
    num_ipus_per_replica: int = 1
    num_on_host: int = 1


def launch_secret() -> str:
    """Returns the secret of this launch, which only its processes know; "" if it has none.

    Raises:
        Error: the secret is so short that it could be guessed.
    """
    secret = os.environ.get(SECRET, "")
    if secret and len(secret) < _LEAST_SECRET:
        raise make_error(
            f"{SECRET} has {len(secret)} characters, but must be a random text of at least "
            f"{_LEAST_SECRET} characters. poprun creates one; with torchrun or mpirun leave it "
            "unset, or set the same text in all processes."
        )
    return secret


def has_popdist_variables() -> bool:
    """Returns whether the variables of `poprun` are set."""
    return TOTAL in os.environ


def has_torchrun_variables() -> bool:
    """Returns whether the variables of torchrun are set."""
    return WORLD_SIZE in os.environ and RANK in os.environ


def is_launched() -> bool:
    """Returns whether a launcher started this process."""
    return has_popdist_variables() or has_torchrun_variables()


def read_launch() -> Launch:
    """Returns the launch that the variables describe; without any, one instance with one replica.

    Raises:
        Error: the variables contradict each other.
    """
    if has_popdist_variables():
        return _of_popdist()
    if not has_torchrun_variables():
        return Launch()
    index, count = integer_of(RANK, at_least=0), integer_of(WORLD_SIZE, at_least=1)
    check_index(index, count, f"{RANK} and {WORLD_SIZE}")
    return Launch(
        index,
        count,
        integer_of(LOCAL_RANK, at_least=0),
        num_on_host=integer_of(LOCAL_WORLD_SIZE, count, at_least=1),
    )


def _of_popdist() -> Launch:
    total = integer_of(TOTAL, 1, at_least=1)
    local = integer_of(LOCAL, total, at_least=1)
    if (uniform := integer_of(UNIFORM, 1)) != 1:
        raise make_error(
            f"{UNIFORM} is {uniform}: instances with different numbers of replicas are not "
            "supported. Give each instance the same number."
        )
    if total % local:
        raise make_error(
            f"{total} replicas cannot be divided among instances of {local} ({TOTAL}, {LOCAL}): "
            "the total must be a multiple of the number of each instance."
        )
    offset = integer_of(OFFSET, at_least=0)
    if offset % local:
        raise make_error(
            f"{OFFSET} is {offset}, but must be a multiple of the {local} replicas of an instance."
        )
    check_index(offset // local, total // local, f"{OFFSET} and {TOTAL}")
    return Launch(
        offset // local,
        total // local,
        integer_of(LOCAL_INDEX, at_least=0),
        local,
        integer_of(IPUS, 1, at_least=1),
        integer_of(LOCAL_WORLD_SIZE, total // local, at_least=1),
    )


def check_index(index: int, count: int, source: str = _OPTIONS) -> None:
    """Refuses a process number outside of [0, count).

    Args:
        index: number of the process.
        count: number of processes.
        source: origin of both numbers, for the error message.

    Raises:
        Error: `index` is not in [0, count).
    """
    if not 0 <= index < count:
        raise make_error(
            f"This is process {index} of {count}, but processes are numbered from 0 to "
            f"{count - 1}. Correct {source}."
        )

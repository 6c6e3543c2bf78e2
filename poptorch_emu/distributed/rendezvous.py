"""Rendezvous of processes: torch.distributed's default group, and the network interface for it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from datetime import timedelta

import torch.distributed as dist

from poptorch_emu.distributed.interfaces import (
    INTERFACE,
    LOOPBACK,
    interface_towards,
    is_this_host,
    listening_socket,
    named_interface,
    resolved,
)
from poptorch_emu.distributed.launch_environment import check_index
from poptorch_emu.environment import integer_of
from poptorch_emu.errors import make_error
from poptorch_emu.torch_versions import TCPStore

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
# Variable that tells torch.distributed that the launcher holds the store.
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
TIMEOUT = "POPTORCH_EMU_TIMEOUT"
_DEFAULT_TIMEOUT_SECONDS = 300.0
_MOST_SECONDS = 1e9  # In nanoseconds this still fits into 64 bits.
# Time that torch.distributed may need beyond its own timeout.
_ANSWER_SECONDS = 2.0


def timeout_seconds() -> float:
    """Returns the time limit for a process that does not answer.

    Raises:
        Error: the environment variable is not a positive number.
    """
    text = os.environ.get(TIMEOUT, str(_DEFAULT_TIMEOUT_SECONDS))
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) <= _MOST_SECONDS:
            return seconds
    raise make_error(
        f"{TIMEOUT} must be a positive number of seconds, at most {_MOST_SECONDS:g}, not '{text}'."
    )


def join_default_group(process: int, num_processes: int) -> bool:
    """Makes torch.distributed's default group unless it exists; returns whether it was made.

    Raises:
        Error: the existing group has another size or another number for this process; the master
            cannot be resolved or does not answer; or no interface leads there.
    """
    check_index(process, num_processes)
    if not dist.is_available():
        raise make_error("This PyTorch has no torch.distributed, which several processes need.")
    is_ours = not dist.is_initialized()
    if is_ours:
        _make_group(process, num_processes)
    if (dist.get_rank(), dist.get_world_size()) != (process, num_processes):
        raise make_error(
            f"This is process {process} of {num_processes} by Options.Distributed, but number "
            f"{dist.get_rank()} of {dist.get_world_size()} in torch.distributed's group. Give both "
            "the same numbers."
        )
    return is_ours


def _make_group(process: int, num_processes: int) -> None:
    address, port = _master()
    resolved(address, port, ADDRESS)
    if named_interface() is None:
        os.environ[INTERFACE] = interface_towards(address, port)
    seconds = timeout_seconds()
    try:
        _join_group(process, num_processes, seconds)
    except (RuntimeError, ValueError, OSError) as error:
        line = str(error).splitlines()[0]
        if "EADDRINUSE" in line or getattr(error, "errno", None) == errno.EADDRINUSE:
            raise make_error(
                f"Process 0 cannot meet the others at {address}:{port}: another program uses this "
                f"port. Set {PORT} to a free one in all processes, or start them with poprun, "
                "which takes a free one."
            ) from error
        raise make_error(
            f"Process {process} did not meet the {num_processes - 1} others at {address}:{port} "
            f"within {seconds:g} s ({TIMEOUT}): {line}. Start all {num_processes} processes, and "
            "check that each of them can reach that address."
        ) from error


def _join_group(process: int, num_processes: int, seconds: float) -> None:
    """Joins the group in a thread with a time limit.

    Without the thread, torch.distributed would never return if another program listens at the port
    and does not answer.

    Raises:
        RuntimeError, ValueError: torch.distributed failed.
        OSError: the port is taken, or the time limit has passed (TimeoutError).
    """
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def join() -> None:
        try:
            dist.init_process_group(
                "gloo",
                store=_local_store(process, num_processes, seconds),
                rank=process,
                world_size=num_processes,
                timeout=timedelta(seconds=seconds),
            )
        except BaseException as error:
            errors.append(error)
        has_ended.set()

    threading.Thread(target=join, name="poptorch rendezvous", daemon=True).start()
    if not has_ended.wait(seconds + _ANSWER_SECONDS):
        raise TimeoutError("the program that listens at this address does not answer")
    if errors:
        raise errors[0]


def _local_store(process: int, num_processes: int, seconds: float) -> TCPStore | None:
    """Returns a store on the loopback interface, or `None` with a launcher or several hosts.

    The store that torch.distributed makes by itself listens on all interfaces.
    """
    address, port = _master()
    if os.environ.get(AGENT_STORE) == str(True) or not is_this_host(address):
        return None
    listener = listening_socket(LOOPBACK, port).detach() if process == 0 else None
    return TCPStore(
        LOOPBACK,
        port,
        num_processes,
        is_master=process == 0,
        timeout=timedelta(seconds=seconds),
        master_listen_fd=listener,
    )


def _master() -> tuple[str, int]:
    address, port = os.environ.get(ADDRESS), os.environ.get(PORT)
    count = integer_of("OMPI_COMM_WORLD_SIZE", 0)
    is_one_host = count > 0 and integer_of("OMPI_COMM_WORLD_LOCAL_SIZE", 0) == count
    if address is None and is_one_host:
        os.environ[ADDRESS] = address = LOOPBACK
    if port is None:
        os.environ[PORT] = port = "29500"
    if address is None:
        raise make_error(
            f"The address at which the processes meet is not set: set {ADDRESS} and {PORT} to the "
            "host of process 0 and a free port there, or start the program with poprun or "
            "torchrun."
        )
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise make_error(f"{PORT} must be a port from 1 to 65535, not '{port}'.")
    return address, int(port)

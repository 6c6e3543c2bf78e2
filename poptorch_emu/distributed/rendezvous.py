"""How processes find each other: torch.distributed's group, and the network that leads there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
from datetime import timedelta

import torch.distributed as dist

from poptorch_emu.distributed.launch_environment import check_index
from poptorch_emu.errors import make_error

ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
# Gloo takes the interface of the host's name unless this says another.
INTERFACE = "GLOO_SOCKET_IFNAME"
TIMEOUT = "POPTORCH_EMU_TIMEOUT"
_DEFAULT_TIMEOUT_SECONDS = 300.0
# So much longer than its own timeout torch.distributed may take.
_ANSWER_SECONDS = 2.0
_SIOCGIFADDR = 0x8915  # Linux: asks for an interface's address.


def timeout_seconds() -> float:
    """Returns how long a silent process is waited for.

    Raises:
        Error: the variable is no positive number.
    """
    text = os.environ.get(TIMEOUT, str(_DEFAULT_TIMEOUT_SECONDS))
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise make_error(f"{TIMEOUT} must be a positive number of seconds, not '{text}'.")


def join_default_group(process: int, num_processes: int) -> None:
    """Makes torch.distributed's default group, unless there is one already.

    Raises:
        Error: the group has another size or number for this process; the master's name is not
            known, or it does not answer; no interface leads there.
    """
    check_index(process, num_processes)
    if not dist.is_available():
        raise make_error("This PyTorch has no torch.distributed, which several processes need.")
    if not dist.is_initialized():
        _make_group(process, num_processes)
    if (dist.get_rank(), dist.get_world_size()) != (process, num_processes):
        raise make_error(
            f"This is process {process} of {num_processes} by Options.Distributed, but number "
            f"{dist.get_rank()} of {dist.get_world_size()} in torch.distributed's group. Give both "
            "the same numbers."
        )


def _make_group(process: int, num_processes: int) -> None:
    address, port = _master()
    try:
        socket.getaddrinfo(address, port)
    except OSError as error:
        raise make_error(
            f"The host '{address}' of process 0 ({ADDRESS}) is not known here: {error}."
        ) from None
    if INTERFACE not in os.environ:
        os.environ[INTERFACE] = interface_towards(address, port)
    seconds = timeout_seconds()
    try:
        _join_group(process, num_processes, seconds)
    except (RuntimeError, ValueError, TimeoutError) as error:
        line = str(error).splitlines()[0]
        if "EADDRINUSE" in line:
            raise make_error(
                f"Process 0 cannot meet the others at {address}:{port}: another program uses this "
                f"port. Set {PORT} to a free one in all processes, or start them with poprun, "
                "which takes a free one."
            ) from error
        raise make_error(
            f"Process {process} did not meet the {num_processes - 1} others at {address}:{port} "
            f"within {seconds:g} s ({TIMEOUT}): {line}. Start as many processes as there should "
            "be, and let all reach that address."
        ) from error


def _join_group(process: int, num_processes: int, seconds: float) -> None:
    """Joins in a thread: where something else listens and is mute, torch.distributed never ends.

    Raises:
        RuntimeError, ValueError: what torch.distributed says.
        TimeoutError: it says nothing.
    """
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def join() -> None:
        try:
            dist.init_process_group(
                "gloo",
                rank=process,
                world_size=num_processes,
                timeout=timedelta(seconds=seconds),
            )
        except BaseException as error:
            errors.append(error)
        has_ended.set()

    threading.Thread(target=join, name="poptorch rendezvous", daemon=True).start()
    if not has_ended.wait(seconds + _ANSWER_SECONDS):
        raise TimeoutError("what listens there does not answer")
    if errors:
        raise errors[0]


def _master() -> tuple[str, int]:
    address, port = os.environ.get(ADDRESS), os.environ.get(PORT)
    is_one_host = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == os.environ.get(
        "OMPI_COMM_WORLD_SIZE", ""
    )
    if address is None and is_one_host:
        os.environ[ADDRESS] = address = "127.0.0.1"
    if port is None:
        os.environ[PORT] = port = "29500"
    if address is None:
        raise make_error(
            f"Nothing says where the processes meet: set {ADDRESS} and {PORT} to the host of "
            "process 0 and a free port there, or start the program with poprun or torchrun."
        )
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise make_error(f"{PORT} must be a port from 1 to 65535, not '{port}'.")
    return address, int(port)


def interface_towards(address: str, port: int) -> str:
    """Returns the name of the network interface by which `address` is reached.

    Raises:
        Error: none leads there.
    """
    family, _, _, _, target = socket.getaddrinfo(address, port, socket.AF_INET)[0]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # Sends nothing: a route is looked up.
            own = probe.getsockname()[0]
    except OSError as error:
        raise make_error(
            f"No network interface leads to {address}, where the processes meet: {error}."
        ) from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name[:15].encode())
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    return "lo" if own.startswith("127.") else _no_interface(address, own)


def _no_interface(address: str, own: str) -> str:
    raise make_error(
        f"{address} is reached from {own}, but no network interface here has that address. Name "
        f"the one that all hosts share in {INTERFACE}."
    )

"""The store that `poprun` holds: the address where it listens and where processes find it.

The store listens on the loopback interface for processes of this host, and on one interface for
processes of several hosts. On all interfaces it would be open to the whole network.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

from poptorch_emu.distributed.interfaces import (
    INTERFACE,
    LOOPBACK,
    address_of,
    is_this_host,
    listening_socket,
    named_interface,
    own_address_towards,
    resolved,
)
from poptorch_emu.errors import Error, make_error
from poptorch_emu.torch_versions import TCPStore

_ADDRESS = "POPTORCH_EMU_LAUNCHER_ADDR"
_SSH_PORT = 22  # Only to look up a route, without sending anything.
_ANSWER_SECONDS = 30
# Addresses that make a host listen on all of its interfaces.
_EVERY_ADDRESS = ("0.0.0.0", "::")


def make_store(other_hosts: Sequence[str]) -> tuple[TCPStore, str]:
    """Returns a listening store, and the address where processes find it.

    Args:
        other_hosts: other hosts with processes; empty if all processes are on this host.

    Raises:
        Error: no interface leads to the other hosts, or the environment names an unknown host or
            interface.
    """
    listening, told = _addresses(other_hosts) if other_hosts else (LOOPBACK, LOOPBACK)
    try:
        listener = listening_socket(listening)
    except OSError as error:
        raise _unknown(f"poprun cannot listen at {listening}: {error}") from error
    store = TCPStore(
        listening,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=_ANSWER_SECONDS),
        master_listen_fd=listener.detach(),
    )
    return store, told


def _addresses(other_hosts: Sequence[str]) -> tuple[str, str]:
    """Returns the address where the store listens, and the address that processes connect to."""
    told = os.environ.get(_ADDRESS, "")
    number = resolved(told, 0, _ADDRESS) if told else ""
    if number in _EVERY_ADDRESS:
        raise _unknown(f"{_ADDRESS} is '{told}', which is not the address of one host")
    interface = named_interface()
    if interface is not None:
        own = address_of(interface)
    elif number and _is_here(number) and (is_this_host(told) or not number.startswith("127.")):
        own = number
    else:
        # Other hosts may reach this one by an address that is not its own.
        own = _own_address(other_hosts[0])
    return own, told or own


def _is_here(number: str) -> bool:
    try:
        listening_socket(number).close()
    except OSError:
        return False
    return True


def _own_address(host: str) -> str:
    """Returns the address of this host as another host sees it.

    If only the start command can resolve the other host, this host's name is returned.
    """
    try:
        return own_address_towards(host, _SSH_PORT)
    except (OSError, UnicodeError) as error:
        fault = str(error)
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = LOOPBACK
    if own.startswith("127."):
        raise _unknown(f"No network interface is known to lead to '{host}': {fault}")
    return own


def _unknown(fault: str) -> Error:
    return make_error(
        f"{fault}. Say with {_ADDRESS} under which address the other hosts reach this one, and "
        f"with {INTERFACE} by which interface."
    )

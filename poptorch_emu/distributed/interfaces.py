"""Network interfaces of this host: their addresses, and the one that leads to another host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

from poptorch_emu.errors import Error, make_error
from poptorch_emu.untrusted.texts import printable

# Variable that names Gloo's interface; by default Gloo uses the interface of the host's name.
INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
# Names that mean the local host on every host.
_THIS_HOST = (LOOPBACK, "localhost")
_SIOCGIFADDR = 0x8915  # Linux: asks for an interface's address.


def is_this_host(address: str) -> bool:
    """Returns whether an address means the local host on every host."""
    return address in _THIS_HOST


def named_interface() -> str | None:
    """Returns the first interface that the environment names.

    Raises:
        Error: this host has no such interface.
    """
    name = os.environ.get(INTERFACE, "").partition(",")[0]
    known = [each for _, each in socket.if_nameindex()]
    if name and name not in known:
        raise make_error(
            f"{INTERFACE} is '{printable(name)}', but this host has no such network interface. It "
            f"has {', '.join(known)}."
        )
    return name or None


def address_of(interface: str) -> str:
    """Returns the address of an interface that the environment names.

    Raises:
        Error: the interface has no address.
    """
    found = _addresses()
    if interface not in found:
        raise make_error(
            f"{INTERFACE} is '{interface}', which has no address. Interfaces with an address are: "
            f"{', '.join(found)}."
        )
    return found[interface]


def resolved(address: str, port: int, variable: str) -> str:
    """Returns the numeric form of an address.

    Args:
        address: host name or numeric address.
        port: port at that address.
        variable: variable that holds the address, for the error message.

    Raises:
        Error: the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: the name is too long.
        raise make_error(
            f"The host '{printable(address)}' ({variable}) is not known here: {error}."
        ) from None
    found.sort(key=lambda each: each[0] is not socket.AF_INET)
    return str(found[0][4][0])


def own_address_towards(address: str, port: int) -> str:
    """Returns the address of this host as another host sees it.

    Raises:
        OSError: the other host is unknown, or no interface leads there.
    """
    family, _, _, _, target = socket.getaddrinfo(address, port, socket.AF_INET)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # Only looks up a route.
        return str(probe.getsockname()[0])


def interface_towards(address: str, port: int) -> str:
    """Returns the name of the network interface that leads to `address`.

    Raises:
        Error: no interface leads there.
    """
    try:
        own = own_address_towards(address, port)
    except OSError as error:
        raise make_error(
            f"No network interface leads to {address}, where the processes meet: {error}."
        ) from None
    found = [name for name, number in _addresses().items() if number == own]
    if found or own.startswith("127."):
        return found[0] if found else "lo"
    raise _no_interface(address, own)


def listening_socket(address: str, port: int = 0) -> socket.socket:
    """Returns a socket that listens at one address of this host.

    Args:
        address: numeric address.
        port: port; 0 chooses a free one.

    Raises:
        OSError: the address is not one of this host, or the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Otherwise a port whose connections were just closed would count as taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(socket.SOMAXCONN)
        return listener
    except BaseException:
        listener.close()
        raise


def _addresses() -> dict[str, str]:
    """Returns the addresses of all interfaces that have one, by name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name[:15].encode())
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def _no_interface(address: str, own: str) -> Error:
    return make_error(
        f"{address} is reached from {own}, but no network interface here has that address. Name "
        f"the one that all hosts share in {INTERFACE}."
    )

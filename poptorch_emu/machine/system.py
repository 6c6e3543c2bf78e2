"""Systems of IPUs by name, with the number and kind of their IPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from poptorch_emu.errors import compiler_error
from poptorch_emu.machine.ipu import C600, IPU_OF_VERSION, Ipu
from poptorch_emu.near_names import did_you_mean

SYSTEM_VARIABLE = "POPTORCH_EMU_SYSTEM"


@dataclass(frozen=True)
class System:
    """A system of IPUs.

    Attributes:
        name: name of the system, for example "bow-pod16".
        num_ipus: number of IPUs on all its machines.
        version: PopTorch's number for the kind of IPU: 1, 2, or 21 for Bow.
        card: kind of IPU if the system consists of PCIe cards. Cards have no gateway and no
            streaming memory.
    """

    name: str
    num_ipus: int
    version: int
    card: Ipu | None = None

    @property
    def chip(self) -> Ipu:
        """The kind of its IPUs; the default kind if the system has no IPUs."""
        return self.card or IPU_OF_VERSION[self.version or DEFAULT_VERSION]

    def devices(self) -> list[range]:
        """Returns the IPUs of each device, indexed by the device's number."""
        sizes = [1 << power for power in range(self.num_ipus.bit_length())]
        return [
            range(first, first + size)
            for size in sizes
            for first in range(0, self.num_ipus - size + 1, size)
        ]


DEFAULT_SYSTEM = "mk2-pod16"
DEFAULT_VERSION = 2

# Source: Graphcore's product names, which give the number of IPUs.
SYSTEMS = {
    system.name: system
    for system in (
        System("none", 0, 0),
        System("mk1-c2", 2, 1),
        System("mk1-pod16", 16, 1),
        System("mk2-m2000", 4, 2),
        System("mk2-pod4", 4, 2),
        System("mk2-pod8", 8, 2),
        System("mk2-pod16", 16, 2),
        System("mk2-pod32", 32, 2),
        System("mk2-pod64", 64, 2),
        System("bow-2000", 4, 21),
        System("bow-pod4", 4, 21),
        System("bow-pod8", 8, 21),
        System("bow-pod16", 16, 21),
        System("bow-pod32", 32, 21),
        System("bow-pod64", 64, 21),
        System("bow-pod128", 128, 21),
        System("bow-pod256", 256, 21),
        System("c600", 8, 2, C600),
    )
}


def current_system() -> System:
    """Returns the virtual system that `POPTORCH_EMU_SYSTEM` names, by default a Mk2 Pod16.

    Raises:
        Error: `POPTORCH_EMU_SYSTEM` names no system.
    """
    return system_of(os.environ.get(SYSTEM_VARIABLE) or DEFAULT_SYSTEM, SYSTEM_VARIABLE)


def system_of(name: str, source: str = "system") -> System:
    """Returns the system with the name `name`.

    Args:
        name: name of a system, for example "bow-pod16".
        source: argument or variable that holds the name, for the error message.

    Raises:
        Error: no system has this name.
    """
    if not isinstance(name, str) or name not in SYSTEMS:
        raise compiler_error(
            f"{source} is '{name}', which is no virtual system. Choose one of {', '.join(SYSTEMS)}."
            f"{did_you_mean(name, SYSTEMS)}"
        )
    return SYSTEMS[name]

"""Machines with IPUs: how many there are and of which kind, by name."""

from __future__ import annotations

import os
from dataclasses import dataclass

from poptorch_emu.errors import compiler_error

SYSTEM_VARIABLE = "POPTORCH_EMU_SYSTEM"


@dataclass(frozen=True)
class System:
    """A machine with IPUs; `version` is 1, 2 or, for Bow, 21."""

    name: str
    num_ipus: int
    version: int

    def devices(self) -> list[range]:
        """Returns the IPUs of each device, by the device's number."""
        sizes = [1 << power for power in range(self.num_ipus.bit_length())]
        return [
            range(first, first + size)
            for size in sizes
            for first in range(0, self.num_ipus - size + 1, size)
        ]


DEFAULT_SYSTEM = "mk2-pod16"

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
    )
}


def current_system() -> System:
    """Returns the virtual system that `POPTORCH_EMU_SYSTEM` names, by default a Mk2 Pod16.

    Raises:
        Error: there is no system of that name.
    """
    name = os.environ.get(SYSTEM_VARIABLE) or DEFAULT_SYSTEM
    if name not in SYSTEMS:
        raise compiler_error(
            f"{SYSTEM_VARIABLE} is '{name}', which is no virtual system. Choose one of "
            f"{', '.join(SYSTEMS)}."
        )
    return SYSTEMS[name]

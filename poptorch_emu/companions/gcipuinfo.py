"""`gcipuinfo`: inventory of the IPUs of this system, which are virtual."""

from __future__ import annotations

import json
from dataclasses import dataclass

from poptorch_emu.runtime.devices import current_system
from poptorch_emu.version import __version__

__all__ = ["gcipuinfo"]

# Source: the C600 and Bow-2000 data sheets: a Mk2 IPU has 1,472 tiles of 624 KiB.
_TILES_PER_IPU = 1472
_MEMORY_PER_TILE_BYTES = 624 * 1024


@dataclass(frozen=True)
class _Device:
    first_ipu: int
    num_ipus: int

    def attributes(self, device_id: int) -> dict[str, str]:
        return {
            "id": str(device_id),
            "type": "virtual",
            "ipu architecture": "ipu2",
            "number of IPUs": str(self.num_ipus),
            "first IPU": str(self.first_ipu),
            "tiles": str(self.num_ipus * _TILES_PER_IPU),
            "tile memory (bytes)": str(_MEMORY_PER_TILE_BYTES),
            "driver version": f"poptorch_emu {__version__}",
        }


class gcipuinfo:
    """The devices of this system: each IPU, then each aligned group of 2, 4, 8, ... (modelled)."""

    def getDevices(self) -> list[dict[str, str]]:
        """Returns the attributes of each device, all as text; empty without IPUs."""
        total = current_system().num_ipus
        devices = [
            _Device(first, size)
            for size in (2**power for power in range(total.bit_length()))
            for first in range(0, total - size + 1, size)
        ]
        return [device.attributes(index) for index, device in enumerate(devices)]

    def getDevicesAsJSON(self) -> str:
        """Returns the same as JSON text."""
        return json.dumps(self.getDevices())

    def getNamedAttributeForAll(self, name: str) -> list[str]:
        """Returns one attribute of each device; "N/A" for one it has not, such as a temperature."""
        return [device.get(name, "N/A") for device in self.getDevices()]

    def setUpdateMode(self, is_on: bool) -> None:
        """Takes whether values are measured anew at each question (accepted: they never change)."""

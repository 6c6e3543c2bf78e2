"""`gcipuinfo`: inventory of the IPUs of this system, which are virtual."""

from __future__ import annotations

import json

from poptorch_emu.machine.ipu import IPU_OF_VERSION
from poptorch_emu.machine.system import current_system
from poptorch_emu.version import __version__

__all__ = ["gcipuinfo"]


def _attributes(device_id: int, ipus: range, version: int) -> dict[str, str]:
    return {
        "id": str(device_id),
        "type": "virtual",
        "ipu architecture": f"ipu{version}",
        "number of IPUs": str(len(ipus)),
        "first IPU": str(ipus.start),
        "tiles": str(len(ipus) * IPU_OF_VERSION[version].num_tiles),
        "tile memory (bytes)": str(IPU_OF_VERSION[version].tile_bytes),
        "driver version": f"poptorch_emu {__version__}",
    }


class gcipuinfo:
    """The devices of this system: each IPU, then each aligned group of 2, 4, 8, ... (modelled)."""

    def getDevices(self) -> list[dict[str, str]]:
        """Returns the attributes of each device as strings; an empty list if there are no IPUs."""
        system = current_system()
        return [
            _attributes(index, ipus, system.version) for index, ipus in enumerate(system.devices())
        ]

    def getDevicesAsJSON(self) -> str:
        """Returns the result of `getDevices` as JSON text."""
        return json.dumps(self.getDevices())

    def getNamedAttributeForAll(self, name: str) -> list[str]:
        """Returns an attribute of each device, or "N/A" if a device lacks it."""
        return [device.get(name, "N/A") for device in self.getDevices()]

    def setUpdateMode(self, is_on: bool) -> None:
        """Sets whether each call measures values anew (accepted: values never change)."""

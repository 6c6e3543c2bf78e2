"""`pva`: reads the reports of programs, as the analyser's library did.

The model of the machine tells what the tiles of an IPU hold on average and at most, and nothing of
single tiles, variables or programs of Poplar: asking for those raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poptorch_emu.report.profile_file import read_profile_file

__all__ = ["Section", "openReport"]


class Section:
    """A part of a report, whose values are its attributes; what is not held raises (modelled)."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        """Returns a value of the report.

        Raises:
            AttributeError: the report does not hold it.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(
                f"{self._path}.{name} is not in this report, which holds "
                f"{', '.join(self._values) or 'nothing'} there. poptorch_emu knows no single tiles "
                "and no programs of Poplar; look at emulator.tile_memory(model) and "
                "emulator.estimate(model)."
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]


def openReport(path: str | Path, debug_cbor: str | Path | None = None) -> Section:
    """Returns the report of a `profile.pop` that `emulator.report` wrote (modelled).

    Its `compilation.target` tells `numIPUs`, `numTiles`, `tilesPerIpu`, `bytesPerTile`,
    `bytesPerIPU`, `totalMemory`, `clockFrequency` (Hz) and `numReplicas`; its
    `execution.totalCycles.total` the cycles of a call.

    Args:
        path: of the file.
        debug_cbor: has no effect, since names stand in the report.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another version.
    """
    view = read_profile_file(Path(path))
    seconds, clock_hz = view["speed"]["predicted_step_seconds"], view["machine"]["clock_hz"]
    cycles = None if seconds is None or clock_hz is None else round(seconds * clock_hz)
    total = Section("report.execution.totalCycles", {"total": cycles})
    version = dict(view["versions"]).get("poptorch_emu")
    sections = {
        "compilation": Section("report.compilation", {"target": _target(view["machine"])}),
        "execution": Section("report.execution", {"totalCycles": total}),
        "poplarVersion": Section("report.poplarVersion", {"string": version}),
    }
    return Section("report", sections)


def _target(machine: Mapping[str, Any]) -> Section:
    ipus, tiles, num_bytes = machine["num_ipus"], machine["num_tiles"], machine["tile_bytes"]
    replicas = machine["num_replicas"]
    values = {"numReplicas": replicas, "clockFrequency": machine["clock_hz"]}
    if None not in (ipus, tiles, num_bytes):
        values |= {
            "numIPUs": replicas * ipus,
            "numTiles": replicas * ipus * tiles,
            "tilesPerIpu": tiles,
            "bytesPerTile": num_bytes,
            "bytesPerIPU": tiles * num_bytes,
            "totalMemory": replicas * ipus * tiles * num_bytes,
        }
    return Section("report.compilation.target", values)

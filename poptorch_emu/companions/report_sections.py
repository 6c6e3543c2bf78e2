"""Sections of a `pva` report: values are attributes, and reading a missing value raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

ADVICE = (
    "poptorch_emu models neither the variables of each tile nor programs of Poplar. Use "
    "emulator.tile_memory(model) and emulator.estimate(model) instead."
)


class NotInReport(AttributeError, RuntimeError):
    """Raised if a report lacks a value; programs may catch either base class (exact)."""


class Section:
    """A part of a report whose values are attributes; a missing one raises (modelled)."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        """Returns a value of the report.

        Raises:
            NotInReport: the report has no value of this name.
        """
        # Python itself looks these attributes up, also before `__init__` has set them.
        if name.startswith("__") or name in ("_path", "_values"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise NotInReport(
                f"{self._path}.{name} is not in this report, which holds "
                f"{', '.join(self._values) or 'nothing'} there. {ADVICE}"
            ) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]


class ByTile(Sequence[int]):
    """A number for each tile: `value` on the computing tiles of an IPU in each replica, else 0."""

    def __init__(self, value: int, used: range, of_replica: int, num_tiles: int) -> None:
        """Stores the value, the tiles of a replica that have it, and the numbers of tiles."""
        self._value, self._used = value, used
        self._of_replica, self._num_tiles = of_replica, num_tiles

    def times(self, factor: int) -> ByTile:
        """Returns the same tiles with a multiple of the value."""
        return ByTile(self._value * factor, self._used, self._of_replica, self._num_tiles)

    def __len__(self) -> int:
        return self._num_tiles

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        tiles = range(self._num_tiles)[index]
        if isinstance(tiles, range):
            return [self[tile] for tile in tiles]
        return self._value if tiles % self._of_replica in self._used else 0


def used_tiles(machine: Mapping[str, Any], ipu: int) -> ByTile | None:
    """Returns 1 for each tile of an IPU that computes; `None` if the machine is not known."""
    num_ipus, num_tiles = machine["num_ipus"], machine["num_tiles"]
    num_used = machine.get("num_compute_tiles")
    if None in (num_ipus, num_tiles, num_used):
        return None
    first, of_replica = ipu * num_tiles, num_ipus * num_tiles
    used = range(first, first + num_used)
    return ByTile(1, used, of_replica, machine["num_replicas"] * of_replica)

"""Parts of a report of `pva`: their values are attributes, and what is not there raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

ADVICE = (
    "poptorch_emu knows no variables of a tile and no programs of Poplar; look at "
    "emulator.tile_memory(model) and emulator.estimate(model)."
)


class NotInReport(AttributeError, RuntimeError):
    """A report does not hold what was asked for; programs catch either of its bases (exact)."""


class Section:
    """A part of a report, whose values are its attributes; what is not held raises (modelled)."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        """Returns a value of the report.

        Raises:
            NotInReport: the report does not hold it.
        """
        # Python asks for these itself, before there is anything.
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
    """A number for each tile: one for those of an IPU, in each replica, that compute; else 0."""

    def __init__(self, value: int, used: range, of_replica: int, num_tiles: int) -> None:
        """Takes the value, the tiles of a replica that have it, and how many tiles there are."""
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
    """Returns 1 for each tile of an IPU that computes, if the machine of a report is known."""
    num_ipus, num_tiles = machine["num_ipus"], machine["num_tiles"]
    num_used = machine.get("num_compute_tiles")
    if None in (num_ipus, num_tiles, num_used):
        return None
    first, of_replica = ipu * num_tiles, num_ipus * num_tiles
    used = range(first, first + num_used)
    return ByTile(1, used, of_replica, machine["num_replicas"] * of_replica)

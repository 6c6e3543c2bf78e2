"""`Options.TensorLocations` and `TensorLocationSettings`: memory that stores tensors.

The location never changes a result.
"""

from __future__ import annotations

from typing import Final

from poptorch_emu.config import LocationConfig, TensorLocation
from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.options.base import OptionsDict, integer, note_accepted, require_type

MIN_IO_TILES: Final = 32
MAX_IO_TILES: Final = 192


class TensorLocationSettings(OptionsDict):
    """Locations of the tensors of one kind (modelled); by default all stay on chip."""

    def __init__(self) -> None:
        """Creates settings without any option, so that defaults apply."""
        super().__init__()

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Keeps tensors with fewer elements on chip (modelled); by default 2."""
        least = integer(min_elements, "minElementsForOffChip", range(2**63))
        self.createOrSet(minElementsForOffChip=least)
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Keeps tensors with fewer elements whole on each replica (exact); by default 8192."""
        least = integer(min_elements, "minElementsForReplicatedTensorSharding", range(2**63))
        self.createOrSet(minElementsForReplicatedTensorSharding=least)
        return self

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """Selects the IPU's memory or streaming memory; `None` unsets it (modelled).

        Tensors in streaming memory are copied to the IPU for each use. By default tensors stay on
        chip, except weights and activations of phases with another liveness than `AlwaysLive`.
        """
        self._check_unfrozen()
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._set_flag("onChip", use, "useOnChipStorage")

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Makes each replica store and update only a part of each tensor (exact).

        Works for weights, optimiser state and accumulators in training; accepted for activations.
        """
        return self._set_flag("useReplicatedTensorSharding", use, "useReplicatedTensorSharding")

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Loads through the tiles reserved for I/O (accepted: plans do not distinguish it)."""
        note_accepted("TensorLocationSettings.useIOTilesToLoad")
        return self._set_flag("useIOTilesToLoad", use, "useIOTilesToLoad")

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Keeps the tensor on the tiles reserved for I/O (modelled: shown in the memory plan)."""
        return self._set_flag("useIOTilesToStore", use, "useIOTilesToStore")

    def _set_flag(self, key: str, use: bool, method: str) -> TensorLocationSettings:
        require_type(use, bool, method)
        self.createOrSet(**{key: int(use)})
        return self


class _TensorLocationOptions(OptionsDict, path="options.TensorLocations"):
    """Locations of activations, weights, optimiser state and accumulators (modelled)."""

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Reserves tiles for I/O on each IPU (modelled).

        Raises:
            AssertionError: `num_tiles` is not an even number between 32 and 192.
        """
        num_tiles = integer(num_tiles, "numIOTiles", range(-(2**63), 2**63))
        require(
            MIN_IO_TILES <= num_tiles <= MAX_IO_TILES and num_tiles % 2 == 0,
            f"numIOTiles must be an even number between 32 and 192. It was set to {num_tiles}.",
        )
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Sets where activations are stored between forward and backward (modelled).

        Replicated tensor sharding divides activations that are equal on all replicas, such as a
        float16 copy of a weight or a table of positions. Other activations stay whole, because no
        other replica could store a part of them.
        """
        return self._set_location("activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Sets where weights are stored (modelled).

        Without `useOnChipStorage` the liveness of phases decides.
        """
        return self._set_location("weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Sets where the optimiser's state is stored (modelled)."""
        return self._set_location("optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Sets where gradient accumulators are stored (modelled)."""
        return self._set_location("accumulator", location)

    def _set_location(self, kind: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        require_type(location, TensorLocationSettings, f"the {kind} location")
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        return self


def location_config(options: _TensorLocationOptions, has_io_tiles: bool) -> LocationConfig:
    """Returns the immutable form of all locations."""
    return LocationConfig(
        **{
            kind: _location(kind, options(f"location_{kind}"), has_io_tiles)
            for kind in ("activation", "weight", "optimizer", "accumulator")
            if options.exists(f"location_{kind}")
        }
    )


def _location(kind: str, settings: dict[str, int], has_io_tiles: bool) -> TensorLocation:
    default = TensorLocation()
    if settings.get("useIOTilesToStore") and not has_io_tiles:
        logger.warning(
            "useIOTilesToStore has no effect on the %s location: no tiles are set apart for I/O. "
            "Set apart 32 or more with poptorch.Options().TensorLocations.numIOTiles.",
            kind,
        )
    return TensorLocation(
        is_on_chip=bool(settings["onChip"]) if "onChip" in settings else None,
        min_elements_off_chip=settings.get("minElementsForOffChip", default.min_elements_off_chip),
        uses_io_tiles_to_load=bool(settings.get("useIOTilesToLoad", False)),
        uses_io_tiles_to_store=has_io_tiles and bool(settings.get("useIOTilesToStore", False)),
    )

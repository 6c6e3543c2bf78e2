"""Reports that a model would not fit on the machine, as a warning or as PopTorch's error."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from poptorch_emu.compile.executable import Executable
from poptorch_emu.config import TargetKind
from poptorch_emu.errors import compiler_error
from poptorch_emu.log import compiler_logger
from poptorch_emu.module_loading import LateModule
from poptorch_emu.troubleshooting import Topic

if TYPE_CHECKING:
    from poptorch_emu.report import profile, tile_report
else:
    profile = LateModule("poptorch_emu.report.profile")
    tile_report = LateModule("poptorch_emu.report.tile_report")

_VARIABLE = "POPTORCH_EMU_OOM"
_WARN, _ERROR, _OFF = "warn", "error", "off"
_ERROR_TYPE = "graph_memory_allocation_error"

_ADVICE = (
    "Spread the model over more IPUs, recompute activations, use a smaller micro-batch or half "
    "precision, shard or move optimizer state (TensorLocations), or lower "
    "setAvailableMemoryProportion."
)


def check_memory(executable: Executable, profile_folder: Path | None) -> None:
    """Reports a model that the tiles of the machine could not hold (modelled).

    By default the model runs, after one warning and a table of the tiles' memory at level info.
    Targets of the IPU Model have no such limit.

    Args:
        executable: executable that was just compiled or loaded.
        profile_folder: folder for the profile of a model that is refused.

    Raises:
        Error: the model does not fit and `POPTORCH_EMU_OOM` is `error`, or that variable is none of
            `warn`, `error` and `off`.
    """
    mode = os.environ.get(_VARIABLE) or _WARN
    if mode not in (_WARN, _ERROR, _OFF):
        raise compiler_error(
            f"{_VARIABLE} is '{mode}', which is none of {_WARN}, {_ERROR} and {_OFF}."
        )
    is_limited = executable.config.target is not TargetKind.IPU_MODEL
    if mode == _OFF or not is_limited or not executable.shortages:
        return
    found = [f"{shortage}." for shortage in executable.shortages]
    found[0] = f"Memory allocation error : {found[0]}"
    table = str(tile_report.TileReport.of(executable.tiles))
    if mode == _ERROR:
        if profile_folder is not None:
            found += _profile_lines(profile_folder, executable)
        advice = f"{_ADVICE.removesuffix('.')}; {Topic.OUT_OF_MEMORY}"
        raise compiler_error("\n".join([*found, advice, table]), type=_ERROR_TYPE)
    if len(found) > 1:
        found[0] += f" {len(found)} IPUs would hold too much."
    _warn(found[0], table)


@cache
def _warn(found: str, table: str) -> None:
    """Warns of one model once; the table is logged at level info only."""
    compiler_logger.warning(
        "%s By the memory model this would not fit on the machine; it runs here all the same. %s "
        "%s=error makes this an error, %s=off says nothing; %s",
        found,
        _ADVICE,
        _VARIABLE,
        _VARIABLE,
        Topic.OUT_OF_MEMORY,
    )
    compiler_logger.info("%s", table)


def _profile_lines(folder: Path, executable: Executable) -> list[str]:
    """Writes the profile of a refused model; returns lines that name its folder, if written."""
    try:
        profile.write_profile(folder, executable, (), ())
    except OSError as fault:
        compiler_logger.warning("The profile of the refused model is not written: %s", fault)
        return []
    compiler_logger.error("Out of memory, the graph profile is available here: %s", folder)
    return [
        "Out of memory: Cannot fit all variable data onto one or more tiles. Profile saved to: "
        f"{folder}"
    ]

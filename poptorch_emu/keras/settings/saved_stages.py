"""Stages and options of pipelines in the files of models.

Keras's own files have no place for them. They are a further member of the archive, or a further
attribute of an HDF5 file, which Keras ignores.
"""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from keras.src.utils.module_utils import h5py

from poptorch_emu.config import TableConfig
from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.settings import run_settings
from poptorch_emu.keras.settings.run_settings import ModelSettings
from poptorch_emu.keras.stages import stage_assignment

# Names of the methods of a model that save and restore them.
SAVE, RESTORE = "_poptorch_save_stages", "_poptorch_restore_stages"
_NAME = "poptorch_emu_pipeline.json"


def save(model: Any, settings: ModelSettings, path: Path) -> None:
    """Adds the stages and options of a model to its file."""
    content = {"settings": _plain(settings), "stages": stage_assignment.known_stages(model)}
    text = json.dumps(content, default=_plain)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_NAME, text)
    else:
        with h5py.File(path, "a") as file:
            file.attrs[_NAME] = text


def restore(model: Any, path: Path) -> ModelSettings | None:
    """Gives a model the stages in its file, and returns the options; `None` if it has none.

    Raises:
        Error: the file has something else in their place.
    """
    text = _text(path)
    if text is None:
        return None
    try:
        content = json.loads(text)
        settings = _settings(content["settings"])
        stage_assignment.restore(model, content["stages"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise compiler_error(
            f"The stages in the file {str(path)!r} do not belong to its model ({error}). Load it "
            "outside of the scope of the strategy, and assign stages anew."
        ) from error
    return settings


def _text(path: Path) -> str | None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return archive.read(_NAME).decode() if _NAME in archive.namelist() else None
    if not h5py.is_hdf5(path):
        return None
    with h5py.File(path) as file:
        return str(file.attrs[_NAME]) if _NAME in file.attrs else None


def _plain(value: Any) -> Any:
    """Returns what JSON can hold for a data class or a member of an enumeration."""
    if isinstance(value, Enum):
        return value.name
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _settings(given: Mapping[str, Any]) -> ModelSettings:
    proportions, schedule = given["proportions"], given["schedule"]
    return ModelSettings(
        accumulation=run_settings.checked_accumulation(given["accumulation"]),
        reduction=_member(run_settings.GradientAccumulationReductionMethod, given["reduction"]),
        device_mapping=run_settings.checked_mapping(given["device_mapping"]),
        schedule=_member(run_settings.PipelineSchedule, schedule)
        if isinstance(schedule, str)
        else TableConfig(
            str(schedule["name"]),
            int(schedule["stages_per_ipu"]),
            tuple(tuple(map(str, row)) for row in schedule["rows"]),
        ),
        recomputation=_member(run_settings.RecomputationMode, given["recomputation"]),
        placement=run_settings.checked_placement(given["placement"]),
        proportions=tuple(None if each is None else float(each) for each in proportions),
    )


def _member(kind: Any, name: str | None) -> Any:
    return None if name is None else kind[name]

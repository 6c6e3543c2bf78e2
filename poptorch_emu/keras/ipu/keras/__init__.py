"""Models, pipeline stages, metrics of replicas, and optimisers."""

import importlib
from typing import Any

from keras import Model as Model
from keras import Sequential as Sequential

from poptorch_emu.keras.settings.run_settings import ReplicatedMetricReductionMethod
from poptorch_emu.keras.stages.stage_entries import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from poptorch_emu.keras.stages.stage_marks import PipelineStage

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "FunctionalNestedModelPipelineStageAssignment",
    "ModelLayerPipelineStageAssignment",
    "NestedModelPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
    "SequentialLayerPipelineStageAssignment",
    "SequentialNestedModelPipelineStageAssignment",
]

_LATE = {
    "layers": "poptorch_emu.companions.ipu_tensorflow_addons.keras.layers",
    "optimizers": "poptorch_emu.keras.ipu.optimizers",
}


def __getattr__(name: str) -> Any:
    """Loads a submodule at its first use.

    Raises:
        AttributeError: the name does not exist.
    """
    if name in _LATE:
        return importlib.import_module(_LATE[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {__all__}.")

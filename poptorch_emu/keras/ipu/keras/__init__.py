"""Pipeline stages of functional models, and what is logged of replicas."""

from poptorch_emu.keras.run_settings import ReplicatedMetricReductionMethod
from poptorch_emu.keras.stage_assignment import (
    FunctionalLayerPipelineStageAssignment,
    PipelineStage,
)

__all__ = [
    "FunctionalLayerPipelineStageAssignment",
    "PipelineStage",
    "ReplicatedMetricReductionMethod",
]

"""Pipeline stages of functional models."""

from poptorch_emu.keras.stage_assignment import (
    FunctionalLayerPipelineStageAssignment,
    PipelineStage,
)

__all__ = ["FunctionalLayerPipelineStageAssignment", "PipelineStage"]

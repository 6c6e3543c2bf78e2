"""How the stages of a pipeline are scheduled and recomputed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.keras.run_settings import PipelineSchedule, RecomputationMode

__all__ = [
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "recomputation_checkpoint",
]


@dataclass(frozen=True)
class PipelineStageOptions:
    """Options of the compiler for one stage: values do not depend on them (accepted).

    Attributes:
        convolution_options: of convolutions, by name.
        matmul_options: of products of matrices, by name.
        slice_options: of slices, by name.
    """

    convolution_options: Mapping[str, str] | None = None
    matmul_options: Mapping[str, str] | None = None
    slice_options: Mapping[str, str] | None = None


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Returns tensors as they are: which are kept does not change values (exact).

    Args:
        tensors: a structure.
        name: accepted.
    """
    return tensors

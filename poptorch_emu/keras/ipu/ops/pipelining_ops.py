"""Options for the schedule and the recomputation of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poptorch_emu.keras.settings.run_settings import PipelineSchedule, RecomputationMode

__all__ = [
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "recomputation_checkpoint",
]


@dataclass(frozen=True)
class PipelineStageOptions:
    """Compiler options of one stage, which do not change values (accepted).

    The proportion "availableMemoryProportion" changes the plans of memory and time (modelled).

    Attributes:
        convolution_options: options of convolutions, by name.
        matmul_options: options of matrix products, by name.
        slice_options: options of slices, by name.

    Raises:
        TypeError: options are not given by name.
    """

    convolution_options: Mapping[str, str] | None = None
    matmul_options: Mapping[str, str] | None = None
    slice_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Checks the types."""
        for name, options in vars(self).items():
            is_named = isinstance(options, Mapping) and all(isinstance(x, str) for x in options)
            if options is not None and not is_named:
                raise TypeError(
                    f"PipelineStageOptions.{name} must be a dict of options by name, not "
                    f"{options!r}."
                )


def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Returns tensors unchanged, because checkpoints do not change values (exact).

    Args:
        tensors: structure of tensors.
        name: accepted.
    """
    return tensors

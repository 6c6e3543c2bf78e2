"""`Options.Training` and `Options.Jit`."""

from __future__ import annotations

from poptorch_emu.enums import MeanReductionStrategy, ReductionType
from poptorch_emu.log import logger
from poptorch_emu.options.base import COUNTS, OptionsDict, flag, note_accepted
from poptorch_emu.options.popart import _PopartOptions


class _TrainingOptions(OptionsDict, path="options.Training"):
    """Options that only training reads (exact)."""

    _counts = {"gradient_accumulation": ("poptorch.Options.Training.gradientAccumulation", COUNTS)}

    def __init__(self, popart_options: _PopartOptions) -> None:
        """Stores `popart_options`, which some setters change."""
        self._popart = popart_options
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Sets the number of micro-batches that contribute to one weight update (exact).

        Example:
            >>> options = poptorch.Options().deviceIterations(2)
            >>> _ = options.Training.gradientAccumulation(8)
            >>> dataset = torch.utils.data.TensorDataset(torch.arange(64))
            >>> [len(rows) for (rows,) in poptorch.DataLoader(options, dataset, batch_size=4)]
            [64]
        """
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(
        self, reduction_type: ReductionType
    ) -> _TrainingOptions:
        """Sets whether gradients of micro-batches and replicas are averaged or summed (exact).

        Raises:
            ValueError: `reduction_type` is neither `Mean` nor `Sum`.
        """
        is_known = isinstance(reduction_type, ReductionType)
        if not is_known or reduction_type is ReductionType.NoReduction:
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to "
                "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum, "
                f"not to {reduction_type!r}."
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> _TrainingOptions:
        """Sets when a mean of gradients is divided, which changes its rounding (exact)."""
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> _TrainingOptions:
        """Multiplies the loss scaling by a factor that follows the gradients' size (modelled).

        After each update the device doubles the factor, or halves it if gradients come near the
        largest float16 number. The backend settings `automaticLossScalingSettings.*` control it;
        docs/numerics.md describes them and the rule.
        """
        is_enabled = flag(enabled, "setAutomaticLossScaling")
        self._popart.set("automaticLossScalingSettings.enabled", is_enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Requests that convolutions start on different tiles (accepted).

        Replaces the convolution part of `Precision.setPartialsType`, as in PopTorch.
        """
        note_accepted("Options.Training.setConvolutionDithering")
        is_enabled = flag(enabled, "setConvolutionDithering")
        self._popart.set("convolutionOptions", {"enableConvDithering": is_enabled})
        return self


class _JitOptions(OptionsDict, path="options.Jit"):
    """Options of a tracer that no longer exists (accepted)."""

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Does nothing for `False` (accepted, deprecated); `True` is refused.

        Raises:
            ValueError: `trace_model` is true.
        """
        logger.warning(
            "[Deprecated] Do not call options.Jit.traceModel(): there is one way to trace. "
            "Remove the call."
        )
        if trace_model:
            raise ValueError(
                "options.Jit.traceModel(True) is no longer supported. Remove the call."
            )
        return self

"""The initial gradient of back-propagation, 1 times the loss scaling, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Source, SourceKind
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import FakeTensorMode
from poptorch_emu.trace.fakes.fake_tensors import FakeMaker
from poptorch_emu.trace.recording.recorder import IPU, Recorder
from poptorch_emu.update.formulas.loss_scale import FACTOR
from poptorch_emu.update.formulas.optimizer_config import LOSS_SCALING, Hyper, OptimizerConfig

_LARGEST_HALF = torch.finfo(torch.float16).max
_ONE = Hyper(1.0, is_constant=True)


@dataclass(frozen=True)
class ScalingLimits:
    """The largest loss scalings that the types of loss and gradients can hold.

    Attributes:
        loss_type: type of the loss.
        line: line of the user's code that computes the loss.
        half_parameter: name of a trained parameter in float16, or None.
    """

    loss_type: torch.dtype
    line: str
    half_parameter: str | None

    @staticmethod
    def of(loss: torch.Tensor, line: str, parameters: Mapping[str, torch.Tensor]) -> ScalingLimits:
        """Returns the limits for the fake tensors of the loss and of the trained parameters."""
        in_half = [name for name, each in parameters.items() if each.dtype is torch.float16]
        return ScalingLimits(loss.dtype, line, in_half[0] if in_half else None)

    def check(self, scaling: float) -> None:
        """Checks a loss scaling; warns where gradients in float16 overflow unless they are small.

        Raises:
            Error: the initial gradient would be infinite.
        """
        largest = torch.finfo(self.loss_type).max
        if scaling > largest:
            raise compiler_error(
                f"loss_scaling={scaling:g} of the optimizer is more than {largest:g}, the largest "
                f"number of {self.loss_type}, the type of the loss at {self.line}. All gradients "
                "would be infinite or NaN. Set a smaller loss_scaling, or compute the loss in "
                "float32: loss(output.float(), target)."
            )
        if self.half_parameter is not None and scaling > _LARGEST_HALF:
            logger.warning(
                "loss_scaling=%g of the optimizer multiplies gradients in float16, whose largest "
                "number is %g: gradients of %r above %g become infinite. Set a smaller "
                "loss_scaling.",
                scaling,
                _LARGEST_HALF,
                self.half_parameter,
                _LARGEST_HALF / scaling,
            )


@dataclass(frozen=True)
class InitialGradient:
    """The gradient of the loss by itself, times the loss scaling.

    Attributes:
        scaling: the loss scaling.
        is_automatic: whether the device also has a factor that it adapts itself.
    """

    scaling: Hyper = _ONE
    is_automatic: bool = False

    @staticmethod
    def of(optimizer: OptimizerConfig | None) -> InitialGradient:
        """Returns the initial gradient for an optimiser."""
        if optimizer is None:
            return InitialGradient()
        return InitialGradient(optimizer.loss_scaling, optimizer.loss_scale_rule is not None)

    def scales(self, recorder: Recorder, fake_mode: FakeTensorMode) -> list[float | torch.Tensor]:
        """Returns the factors of the initial gradient. A variable factor becomes a new source.

        To be called outside the recorder, because hyper-parameters are float64 in every model.
        """

        def source(kind: SourceKind, name: str, dtype: torch.dtype) -> torch.Tensor:
            value = FakeMaker(IPU).empty(fake_mode, (), dtype)
            recorder.add_source(Source(kind, name), value, NodeRecord())
            return value

        scales: list[float | torch.Tensor] = [self.scaling.value]
        if not self.scaling.is_constant:
            scales = [source(SourceKind.SCALAR, LOSS_SCALING, torch.float64)]
        if self.is_automatic:
            scales.append(source(SourceKind.VARIABLE, FACTOR, torch.float32))
        return scales


def first_gradient(loss: torch.Tensor, scales: list[float | torch.Tensor]) -> torch.Tensor:
    """Returns the product of `scales`, with the shape of `loss`."""
    first, *others = scales
    if isinstance(first, float):
        gradient = torch.full_like(loss, first)
    else:
        gradient = torch.ones_like(loss) * first
    for scale in others:
        gradient = gradient * scale
    return gradient

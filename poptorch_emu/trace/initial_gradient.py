"""The initial gradient of back-propagation: 1 times the loss scaling."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poptorch_emu.ir.graph import Source, SourceKind
from poptorch_emu.ir.record import NodeRecord
from poptorch_emu.torch_versions import FakeTensorMode
from poptorch_emu.trace.fakes import FakeMaker
from poptorch_emu.trace.recorder import IPU, Recorder
from poptorch_emu.update.formulas.loss_scale import FACTOR
from poptorch_emu.update.formulas.optimizer_config import LOSS_SCALING, Hyper, OptimizerConfig

_ONE = Hyper(1.0, is_constant=True)


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

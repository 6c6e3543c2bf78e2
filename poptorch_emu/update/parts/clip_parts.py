"""The parts of an update by which the global norm of all gradients is limited.

Each IPU takes the norm of the gradients of each of its stages and sends it to all that update.
Those compute the factor each for itself, from the same numbers in the order of the stages, and so
with the same bits, wherever the stages are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_parts import Binding, Gradient, Part
from poptorch_emu.update.recorded import CLIP, NORM, record_clip, record_norm


class ClipParts:
    """Norms on all IPUs that have gradients, and the factor wherever weights are updated."""

    def __init__(self, optimizer: OptimizerConfig, gradient_scale: float) -> None:
        """Takes the limit, and by what accumulated gradients are multiplied first."""
        self._optimizer = optimizer
        self._scale = gradient_scale
        self._norms: dict[int, tuple[Part, int]] = {}

    def norms(self, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that take the norms of one IPU's gradients, one for each stage."""
        stages = sorted({gradient.stage for gradient in gradients})
        for stage in stages:
            part = Part(Segment(f"norm {stage}"))
            names = [gradient.name for gradient in gradients if gradient.stage == stage]
            template = record_norm(names, self._optimizer.accum_type, self._scale)
            self._norms[stage] = part, Binding().inline(template, part)[NORM]
        return [self._norms[stage][0] for stage in stages]

    def add_factor(self, part: Part, arrived: Mapping[str, Register]) -> dict[str, Register]:
        """Plans that the norms arrive at a part, in order of the stages, and become one factor.

        Args:
            part: that updates.
            arrived: registers of it that links fill, by name.

        Returns:
            The register of the factor, by name.
        """
        given = dict(arrived)
        for number, (_, (producer, norm)) in enumerate(sorted(self._norms.items())):
            given |= part.receive(producer, {str(number): norm})
        template = record_clip(self._optimizer, len(self._norms))
        return {CLIP: Register(Binding(arrived=given).inline(template, part)[CLIP])}

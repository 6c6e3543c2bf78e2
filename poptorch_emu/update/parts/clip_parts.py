"""The parts of an update that limit the global norm of all gradients.

Each IPU computes the norm of the gradients of each of its stages and sends it to all parts that
update. Each of those computes the factor itself, from the same norms in the order of the stages. So
the bits of the factor do not depend on the IPUs of the stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.update.formulas.optimizer_config import OptimizerConfig
from poptorch_emu.update.parts.update_parts import Binding, Gradient, Part
from poptorch_emu.update.recorded import CLIP, NORM, record_clip, record_norm


class ClipParts:
    """Norms on all IPUs that have gradients, and the factor on all IPUs that update weights."""

    def __init__(self, optimizer: OptimizerConfig, gradient_scale: float) -> None:
        """Stores the optimiser, and the factor for accumulated gradients."""
        self._optimizer = optimizer
        self._scale = gradient_scale
        self._norms: dict[int, tuple[Part, int]] = {}

    def norms(self, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that compute the norms of one IPU's gradients, one for each stage."""
        stages = sorted({gradient.stage for gradient in gradients})
        for stage in stages:
            part = Part(Segment(f"norm {stage}"))
            names = [gradient.name for gradient in gradients if gradient.stage == stage]
            template = record_norm(names, self._optimizer.accum_type, self._scale)
            self._norms[stage] = part, Binding().inline(template, part)[NORM]
        return [self._norms[stage][0] for stage in stages]

    def add_factor(self, part: Part, arrived: Mapping[str, Register]) -> dict[str, Register]:
        """Adds to a part the links that bring the norms, and the computation of the factor.

        Args:
            part: part that updates weights.
            arrived: registers of the part that links fill, by name.

        Returns:
            The register of the factor, by name.
        """
        given = dict(arrived)
        for number, (_, (producer, norm)) in enumerate(sorted(self._norms.items())):
            given |= part.receive(producer, {str(number): norm})
        template = record_clip(self._optimizer, len(self._norms))
        return {CLIP: Register(Binding(arrived=given).inline(template, part)[CLIP])}

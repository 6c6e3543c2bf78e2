"""The parts of an update that adapt an automatic loss scale to the gradients.

Each IPU counts its large gradients. The IPU that starts back-propagation gathers the counts,
changes the factor, and sends the scale of this window's gradients to all IPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ir.graph import Source, SourceKind
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.loss_scale import STATISTICS, TOTAL, LossScaleRule
from poptorch_emu.update.parts.update_parts import Binding, Gradient, Part
from poptorch_emu.update.recorded import COUNTS, LOSS_SCALE, record_counts, record_loss_scale

STATISTICS_VARIABLE = VariableInfo(-1, STATISTICS, (2,), torch.float32, False, initial=0.0)


class LossScaleParts:
    """Counts on all IPUs and the change of the scale on one of them.

    Attributes:
        sums: accumulators of counts, if groups of replicas have different gradients.
    """

    def __init__(
        self, rule: LossScaleRule, accum_type: torch.dtype, scale: float, num_replicas: int
    ) -> None:
        """Stores the values that decide which gradients are large.

        Args:
            rule: thresholds and period of the automatic loss scale.
            accum_type: type of the accumulated gradients.
            scale: factor from an accumulated gradient to the mean of its summands.
            num_replicas: number of replicas that count; 1 if all have the same gradients.
        """
        self.sums: list[str] = []
        self._rule = rule
        self._accum_type = accum_type
        self._edge = rule.edge / scale
        self._replicas = tuple(range(num_replicas))
        self._counts: list[tuple[Part, int]] = []
        self._num_elements = 0
        self._change = Part(Segment("loss scale"))
        self._scales: dict[str, int] = {}

    def count(self, ipu: int, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that count the gradients of one IPU."""
        counter = Part(Segment(f"count {ipu}"), self._replicas)
        names = [gradient.name for gradient in gradients]
        template = record_counts(names, self._accum_type, self._edge)
        register = Binding().inline(template, counter)[COUNTS]
        elements = sum(gradient.weight.num_elements for gradient in gradients)
        self._num_elements += elements * len(self._replicas)
        if len(self._replicas) == 1:
            self._counts.append((counter, register))
            return [counter]
        total = f"counts {ipu}"
        self.sums.append(total)
        counter.sums[register] = total
        sender = Part(Segment(total))
        self._counts.append((sender, sender.code.load(Source(SourceKind.GRADIENT, total))))
        return [counter, Part(Segment(f"reduce counts {ipu}"), self._replicas, (total,)), sender]

    def change(self) -> Part:
        """Returns the part that changes the scale, after all IPUs have counted."""
        arrived: dict[str, Register] = {}
        for number, (producer, count) in enumerate(self._counts):
            arrived |= self._change.receive(producer, {str(number): count})
        template = record_loss_scale(self._rule, len(arrived), self._num_elements)
        self._scales = Binding(arrived=arrived).inline(template, self._change)
        self._change.named[TOTAL] = self._scales[LOSS_SCALE]
        return self._change

    def send(self, part: Part) -> dict[str, Register]:
        """Plans the link that sends a part this window's scale; returns its registers by name."""
        return part.receive(self._change, self._scales)

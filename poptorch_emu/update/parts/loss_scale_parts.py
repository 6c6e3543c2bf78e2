"""The parts of an update by which an automatic loss scale follows the gradients.

Each IPU counts its large gradients; the one that starts back-propagation gathers the counts,
changes the factor, and tells everyone the scale that this window's gradients have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poptorch_emu.ir.graph import SinkKind, Source, SourceKind
from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.update.formulas.loss_scale import FACTOR, STATISTICS, LossScaleRule
from poptorch_emu.update.parts.hyper_parameters import scalar_name
from poptorch_emu.update.parts.update_parts import Gradient, Part, PartLink
from poptorch_emu.update.recorded.loss_scale_rule import (
    COUNTS,
    SCALE,
    UNSCALE,
    record_counts,
    record_loss_scale,
)
from poptorch_emu.update.recorded.update_rule import LOSS_SCALE

FACTOR_VARIABLE = VariableInfo(-1, FACTOR, (), torch.float32, False, initial=1.0)
STATISTICS_VARIABLE = VariableInfo(-1, STATISTICS, (2,), torch.float32, False, initial=0.0)


class LossScaleParts:
    """Counts on all IPUs and the change of the scale on one of them.

    Attributes:
        links: what carries counts to the change, and the scale to those who ask for it.
        sums: accumulators of counts, where groups of replicas have gradients of their own.
    """

    def __init__(
        self, rule: LossScaleRule, accum_type: torch.dtype, scale: float, num_replicas: int
    ) -> None:
        """Takes what decides which gradients are large.

        Args:
            rule: of the scale.
            accum_type: type of the accumulated gradients.
            scale: turns an accumulated gradient into the mean of those that it is made of.
            num_replicas: how many replicas count; one where all have the same gradients.
        """
        self.links: list[PartLink] = []
        self.sums: list[str] = []
        self._rule = rule
        self._accum_type = accum_type
        self._edge = rule.edge / scale
        self._replicas = tuple(range(num_replicas))
        self._change = Segment("loss scale")
        self._counts: list[tuple[str, int]] = []
        self._num_elements = 0
        self._sent: tuple[int, ...] = ()

    def count(self, ipu: int, gradients: Sequence[Gradient]) -> list[Part]:
        """Returns the parts that count the gradients of one IPU."""
        code = Segment(f"count {ipu}")
        names = [gradient.name for gradient in gradients]
        template = record_counts(names, self._accum_type, self._edge)
        register = code.inline(template, lambda source: source)[COUNTS]
        code.set_dying({register})
        elements = sum(gradient.weight.num_elements for gradient in gradients)
        self._num_elements += elements * len(self._replicas)
        if len(self._replicas) == 1:
            self._counts.append((code.name, register))
            return [Part(code)]
        total = f"counts {ipu}"
        self.sums.append(total)
        sender = Segment(total)
        self._counts.append((total, sender.load(Source(SourceKind.GRADIENT, total))))
        return [
            Part(code, self._replicas, sums={register: total}),
            Part(Segment(f"reduce counts {ipu}"), self._replicas, (total,)),
            Part(sender),
        ]

    def change(self) -> Part:
        """Returns the part that changes the scale, after all IPUs have counted."""
        code = self._change
        arrived = [Register(code.new_register()) for _ in self._counts]
        for (producer, source), target in zip(self._counts, arrived, strict=True):
            self.links.append(PartLink(producer, (source,), code.name, (target.index,)))

        def bind(source: Source) -> Source | Register:
            if source.kind is SourceKind.LINK:
                return arrived[int(source.name)]
            if source.kind is SourceKind.SCALAR:
                return Source(source.kind, scalar_name(source.name, 0))
            return source

        template = record_loss_scale(self._rule, len(arrived), self._num_elements)
        results = code.inline(template, bind)
        self._sent = (results[SCALE], results[UNSCALE])
        code.set_dying(set(results.values()))
        return Part(
            code,
            stores={
                register: sink.name
                for sink, register in results.items()
                if sink.kind is SinkKind.VARIABLE
            },
            sent=self._sent,
            named={SCALE.name: results[SCALE]},
        )

    def send(self, code: Segment) -> dict[str, Register]:
        """Plans that a segment gets the scale of this window; returns its registers by name."""
        targets = (Register(code.new_register()), Register(code.new_register()))
        indices = tuple(target.index for target in targets)
        self.links.append(PartLink(self._change.name, self._sent, code.name, indices))
        return {LOSS_SCALE.name: targets[0], UNSCALE.name: targets[1]}

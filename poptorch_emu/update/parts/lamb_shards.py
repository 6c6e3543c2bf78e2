"""LAMB for weights that are cut over the replicas.

A step needs the norms of the whole weight and of its direction. So each replica computes its part
of the direction and the squares of its parts; all replicas add those up; each does its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poptorch_emu.segments.segment import Register, Segment
from poptorch_emu.update.formulas.config import OptimizerConfig
from poptorch_emu.update.parts.network_parts import NetworkParts
from poptorch_emu.update.parts.update_parts import Binding, Gradient, Part, PartLink
from poptorch_emu.update.recorded.lamb_rule import (
    DIRECTION,
    SQUARES,
    record_lamb_direction,
    record_lamb_step,
)


class LambShards:
    """The parts of one IPU: `directions`, `reduce squares` and `steps`, and what goes with them.

    Attributes:
        sums: the accumulators of the squares.
        directions: the first part.
    """

    def __init__(
        self, optimizer: OptimizerConfig, scale: float, everyone: tuple[int, ...], ipu: int
    ) -> None:
        self.sums: list[str] = []
        self._optimizer = optimizer
        self._scale = scale
        self._everyone = everyone
        self.directions = Part(Segment(f"directions {ipu}"), everyone, is_sharded=True)
        self._steps = Part(Segment(f"steps {ipu}"), everyone, is_sharded=True)
        self._ipu = ipu
        self._sent: list[int] = []
        self._received: list[int] = []

    def add(self, gradients: Sequence[Gradient], arrived: Mapping[str, Register]) -> None:
        """Plans the steps of these weights.

        Args:
            gradients: of the weights.
            arrived: registers of `directions` that links fill, by name.
        """
        for gradient in gradients:
            self._add_weight(gradient, arrived)
        kept = {*self.directions.stores, *self.directions.sums, *self._sent}
        self.directions.code.set_dying(kept)
        self._steps.code.set_dying(set(self._steps.stores))

    def parts(self, network: NetworkParts | None) -> list[Part]:
        """Returns the parts in order; the network of several processes adds the squares up."""
        if network is not None:
            return [self.directions, *network.add_squares(self._ipu, self.sums), self._steps]
        reduction = Part(Segment(f"reduce squares {self._ipu}"), self._everyone, tuple(self.sums))
        return [self.directions, reduction, self._steps]

    @property
    def link(self) -> PartLink:
        """What carries each replica's directions to its steps."""
        return PartLink(
            self.directions.code.name,
            tuple(self._sent),
            self._steps.code.name,
            tuple(self._received),
        )

    def _add_weight(self, gradient: Gradient, arrived: Mapping[str, Register]) -> None:
        key = (gradient.group, gradient.weight.dtype)
        squares = f"squares of {gradient.name}"
        self.sums.append(squares)
        first = record_lamb_direction(self._optimizer, *key, self._scale)
        binding = Binding(gradient, arrived, {SQUARES: squares})
        carried = binding.inline(first, self.directions)
        self._sent.append(carried[DIRECTION.name])
        received = Register(self._steps.code.new_register())
        self._received.append(received.index)
        second = record_lamb_step(self._optimizer, *key)
        Binding(gradient, {DIRECTION.name: received}, {SQUARES: squares}).inline(
            second, self._steps
        )

"""The update of an optimiser that has no counterpart on the device, as a part of each micro-batch.

Keras's own formula is traced. If an update takes several micro-batches, each of them computes the
update, and only the last one stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import torch

from poptorch_emu.keras.capture.tensorflow_variables import counterpart
from poptorch_emu.keras.capture.updates_in_program import (
    run_formula,
    summed,
    used_variables,
)
from poptorch_emu.keras.capture.variable_scopes import ReadingScope


@dataclass
class CapturedUpdate:
    """An update of weights at the end of a micro-batch.

    Attributes:
        optimizer: built optimiser of Keras.
        trained: weights that are trained.
        accumulation: number of micro-batches of an update.
        factor: factor of the sum of their gradients.
        replicas: number of replicas whose gradients are added.
        counts: integer variables of the optimiser, such as its number of updates.
        variables: floating-point variables of the update, without the weights.
    """

    optimizer: Any
    trained: Sequence[Any]
    accumulation: int = 1
    factor: float = 1.0
    replicas: int = 1
    counts: list[Any] = field(init=False)
    variables: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        """Finds the variables of the optimiser, and makes those for the sums of gradients."""
        weights = {id(each) for each in self.trained}
        own = [v for v in used_variables(self.optimizer, self.trained) if id(v) not in weights]
        self.counts = [each for each in own if "float" not in str(each.dtype)]
        self._sums = [
            keras.Variable(torch.zeros_like(each.value), trainable=False, name="sum")
            for each in (self.trained if self.accumulation > 1 else ())
        ]
        floating = [each for each in own if "float" in str(each.dtype)]
        self.variables = [*floating, *map(counterpart, self.counts), *self._sums]

    def positions(self, steps: int) -> list[torch.Tensor]:
        """Returns a further input for `steps` micro-batches: the position of each in its update."""
        if self.accumulation == 1:
            return []
        return [torch.arange(steps, dtype=torch.int32) // self.replicas % self.accumulation]

    def run(self, scope: ReadingScope, loss: torch.Tensor, position: torch.Tensor | None) -> None:
        """Updates the weights by the gradient of a loss.

        Args:
            scope: scope that stores the new values.
            loss: loss of the micro-batch.
            position: position of the micro-batch in its update; `None` if it is the only one.
        """
        weights = [each.value for each in self.trained]
        scaled = self.optimizer.scale_loss(loss) * self.factor
        gradients = list(torch.autograd.grad(scaled, weights, allow_unused=True))
        scope.begin_update()
        if position is None:
            self._apply(gradients)
            return
        for index, total in enumerate(self._sums):
            if gradients[index] is not None:
                before = torch.where(position == 0, torch.zeros_like(total.value), total.value)
                gradients[index] = before.detach() + gradients[index]
                total.assign(gradients[index])
        scope.choose(
            position == self.accumulation - 1, lambda: self._apply(gradients), lambda: None
        )

    def _apply(self, gradients: Sequence[Any]) -> None:
        totals = [each if each is None else summed(each, self.replicas) for each in gradients]
        run_formula(self.optimizer, totals, self.trained)

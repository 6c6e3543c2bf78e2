"""Updates Keras's metrics on the host with the results of a whole execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch

from poptorch_emu.keras.capture.batches import Batch, joined, num_rows
from poptorch_emu.keras.settings.run_settings import ReplicatedMetricReductionMethod

_KERAS = "keras."
_REDUCTIONS: dict[ReplicatedMetricReductionMethod, Callable[[list[float]], Any]] = {
    ReplicatedMetricReductionMethod.LIST: np.array,
    ReplicatedMetricReductionMethod.SUM: sum,
    ReplicatedMetricReductionMethod.MEAN: lambda values: sum(values) / len(values),
}


def needs_outputs(model: Any) -> bool:
    """Returns whether a metric or another loss is computed from the model's outputs."""
    return (
        model._compile_metrics is not None
        or _has_own_metrics(model)
        or _has_metrics_of_losses(model)
    )


class HostMetrics:
    """The metrics of one model.

    Attributes:
        reduction: method that reduces the metrics of all replicas.
    """

    def __init__(self, model: Any) -> None:
        """Prepares the metrics of a Keras model."""
        self._model = model
        self._states: list[list[torch.Tensor]] = []  # Values of the variables for each replica.
        self.reduction = ReplicatedMetricReductionMethod.NONE

    def reset(self) -> None:
        """Resets the metrics as Keras does, for all replicas."""
        self._states = []
        type(self._model).reset_metrics(self._model)

    def result_or_logs(self, logs: Any) -> Any:
        """Returns the results that Keras shows for an epoch, given its last logs."""
        if self._states:
            return logs
        return type(self._model)._get_metrics_result_or_logs(self._model, logs)

    def update(
        self,
        batches: Sequence[Batch],
        replicas: int,
        whole: Batch,
        losses: torch.Tensor,
        outputs: Any,
    ) -> Any:
        """Updates the metrics with an execution, and returns the values for Keras's logs.

        Args:
            batches: batches of one execution, all of one size.
            replicas: number of replicas among which the batches were divided, in turn.
            whole: all batches joined to one.
            losses: loss of each batch.
            outputs: outputs of all batches joined to one; `None` if no metric needs them.
        """
        if replicas == 1 and not self._states:
            return self._update(batches, whole, losses, outputs)
        if replicas > 1 and self.reduction is ReplicatedMetricReductionMethod.NONE:
            last = slice(replicas - 1, None, replicas)
            return self._update(*_share(last, batches, losses, outputs))
        if not self._states:
            variables = self._model.metrics_variables
            self._states = [[each.value.clone() for each in variables] for _ in range(replicas)]
        count = len(self._states)
        shares: list[Any] = [None] * (count - 1) + [(batches, whole, losses, outputs)]
        if replicas > 1:  # Otherwise one replica ran the last batches of an evaluation.
            turns = (slice(n, None, replicas) for n in range(count))
            shares = [_share(turn, batches, losses, outputs) for turn in turns]
        logs = [self._with_state(n, share) for n, share in enumerate(shares)]
        reduced = _REDUCTIONS[self.reduction]
        return {name: reduced([float(each[name]) for each in logs]) for name in logs[0]}

    def _with_state(self, replica: int, share: Any) -> Any:
        """Returns the logs of one replica after an update with its share, if it has one."""
        model, state = self._model, self._states[replica]
        for variable, value in zip(model.metrics_variables, state, strict=True):
            variable.assign(value)
        logs = model.get_metrics_result() if share is None else self._update(*share)
        state[:] = [each.value.clone() for each in model.metrics_variables]
        return logs

    def _update(
        self, batches: Sequence[Batch], whole: Batch, losses: torch.Tensor, outputs: Any
    ) -> Any:
        model, rows = self._model, num_rows(batches[0])
        model._loss_tracker.update_state(losses, sample_weight=torch.full(losses.shape, rows))
        if outputs is None:
            return model.get_metrics_result()
        if _can_be_joined(model):
            return _update(model, whole, outputs)
        logs = None
        for index, batch in enumerate(batches):
            logs = _update(model, batch, _rows(outputs, rows, [index]))
        return logs


def steps_of(
    batches: Sequence[Batch], replicas: int, losses: torch.Tensor, outputs: Any
) -> Iterator[tuple[Sequence[Batch], int, Batch, torch.Tensor, Any]]:
    """Yields the arguments of `HostMetrics.update` for each step of an execution."""
    for first in range(0, len(batches), replicas):
        mine, *results = _share(slice(first, first + replicas), batches, losses, outputs)
        yield mine, replicas, *results


def _share(
    which: slice, batches: Sequence[Batch], losses: torch.Tensor, outputs: Any
) -> tuple[Sequence[Batch], Batch, torch.Tensor, Any]:
    """Returns some of the batches, the same batches joined, and their results."""
    mine, numbers = batches[which], range(len(batches))[which]
    part = None if outputs is None else _rows(outputs, num_rows(batches[0]), numbers)
    return mine, joined(mine), losses[which], part


def _rows(outputs: Any, rows: int, numbers: Sequence[int]) -> Any:
    """Returns the outputs of the batches in `numbers`; each batch has `rows` rows."""
    return keras.tree.map_structure(
        lambda tensor: torch.cat([tensor[n * rows : (n + 1) * rows] for n in numbers]), outputs
    )


def _update(model: Any, batch: Batch, outputs: Any) -> Any:
    x, y, sample_weight = batch
    with torch.no_grad():
        if _has_metrics_of_losses(model):
            model._compile_loss(y, outputs, sample_weight)  # Updates the single losses' metrics.
        return model.compute_metrics(x, y, outputs, sample_weight=sample_weight)


def _has_own_metrics(model: Any) -> bool:
    return type(model).compute_metrics is not keras.Model.compute_metrics


def _has_metrics_of_losses(model: Any) -> bool:
    return bool(model._compile_loss is not None and model._compile_loss.metrics)


def _can_be_joined(model: Any) -> bool:
    """Returns whether metrics over joined batches equal metrics over single batches."""
    if _has_own_metrics(model) or _has_metrics_of_losses(model):
        return False
    return all(map(_adds_rows, model._compile_metrics.metrics))


def _adds_rows(metric: Any) -> bool:
    """Returns whether a metric is one of Keras's own, all of which sum over rows."""
    function = vars(metric).get("_fn")
    kinds = (type(metric), *(() if function is None else (function,)))
    return all(str(getattr(kind, "__module__", "")).startswith(_KERAS) for kind in kinds)

"""Keras's metrics, updated on the host with what a whole execution brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch

from poptorch_emu.keras.batches import Batch, num_rows

_KERAS = "keras."


def needs_outputs(model: Any) -> bool:
    """Returns whether anything but the loss is computed from what the model returns."""
    return (
        model._compile_metrics is not None
        or _has_own_metrics(model)
        or bool(model._compile_loss is not None and model._compile_loss.metrics)
    )


def update_metrics(
    model: Any, batches: Sequence[Batch], whole: Batch, losses: torch.Tensor, outputs: Any
) -> Any:
    """Updates all metrics of a model, and returns what Keras wants to log.

    Args:
        model: of Keras.
        batches: of one execution, all of one size.
        whole: the same as one.
        losses: of each batch.
        outputs: of all batches as one; `None` if nobody needs them.
    """
    rows = num_rows(batches[0])
    model._loss_tracker.update_state(losses, sample_weight=torch.full(losses.shape, rows))
    if outputs is None:
        return model.get_metrics_result()
    if _can_be_joined(model):
        return _update(model, whole, outputs)
    logs = None
    for index, batch in enumerate(batches):
        part = keras.tree.map_structure(
            lambda tensor, index=index: tensor[index * rows : (index + 1) * rows], outputs
        )
        logs = _update(model, batch, part)
    return logs


def _update(model: Any, batch: Batch, outputs: Any) -> Any:
    x, y, sample_weight = batch
    with torch.no_grad():
        if model._compile_loss is not None and model._compile_loss.metrics:
            model._compile_loss(y, outputs, sample_weight)  # Updates those of the single losses.
        return model.compute_metrics(x, y, outputs, sample_weight=sample_weight)


def _has_own_metrics(model: Any) -> bool:
    return type(model).compute_metrics is not keras.Model.compute_metrics


def _can_be_joined(model: Any) -> bool:
    """Returns whether metrics of many batches are those of all their rows."""
    if _has_own_metrics(model) or (model._compile_loss is not None and model._compile_loss.metrics):
        return False
    return all(map(_adds_rows, model._compile_metrics.metrics))


def _adds_rows(metric: Any) -> bool:
    """Returns whether a metric is one of Keras's own, all of which add up over rows."""
    function = vars(metric).get("_fn")
    kinds = (type(metric), *(() if function is None else (function,)))
    return all(str(getattr(kind, "__module__", "")).startswith(_KERAS) for kind in kinds)

"""Specs of an exported pipeline: plain values for plain PyTorch.

A saved program contains copies of this file and of the others that the runner imports, which then
import each other by their bare names. Therefore the file itself is plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a micro-batch; the name of its dtype lacks the prefix "torch."."""

    shape: tuple[int, ...]
    dtype: str
    has_gradient: bool = False

    def example(self, device: str = "meta") -> torch.Tensor:
        """Returns zeros that match this spec, by default without memory."""
        dtype = getattr(torch, self.dtype)
        return torch.zeros(self.shape, dtype=dtype, device=device, requires_grad=self.has_gradient)


def input_name(number: int | str) -> str:
    """Returns the keyword under which a stage receives an input of the model."""
    return f"input_{number}"


@dataclass(frozen=True)
class StageSpec:
    """The tensors that a stage receives and returns.

    Attributes:
        received: tensors from the stage before.
        returned: tensors for the next stage; all results if the stage is the last.
        inputs: indices of the model's inputs that the stage reads.
        is_split: whether PyTorch may compute gradients of weights separately from those of inputs.
    """

    received: tuple[TensorSpec, ...]
    returned: tuple[TensorSpec, ...]
    inputs: tuple[int, ...]
    is_split: bool = True


@dataclass(frozen=True)
class PipelineSpec:
    """The stages of a pipeline and their schedule.

    Attributes:
        stages: spec of each stage.
        inputs: inputs of the model, for one micro-batch.
        num_micro_batches: number of micro-batches of one step.
        kind: kind of the schedule; one of `pipeline_schedules.KINDS`.
        is_training: whether the last stage returns a loss.
        is_mean: whether gradients are averaged over the micro-batches instead of added.
        rank_of_stage: rank of each stage if the schedule defines it; otherwise empty, for rank
            0, 1, 2, ... and again from 0.
        rows: actions of each rank in order, if the schedule is a table.
        trained: name and stages of each parameter with a gradient, in the model's order; the
            first stage is the owner.
        num_replicas: number of pipelines that train one model, each on its part of the rows.
        max_grad_norm: limit of the norm of all gradients; infinity for no limit.
    """

    stages: tuple[StageSpec, ...]
    inputs: tuple[TensorSpec, ...]
    num_micro_batches: int
    kind: str
    is_training: bool
    is_mean: bool
    rank_of_stage: tuple[int, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    trained: tuple[tuple[str, tuple[int, ...]], ...] = ()
    num_replicas: int = 1
    max_grad_norm: float = math.inf

    @staticmethod
    def of(plain: Mapping[str, Any]) -> PipelineSpec:
        """Returns a spec from the values that `dataclasses.asdict` and JSON stored."""

        def tensors(items: Any) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(tuple(item["shape"]), item["dtype"], item["has_gradient"])
                for item in items
            )

        stages = tuple(
            StageSpec(
                tensors(item["received"]),
                tensors(item["returned"]),
                tuple(item["inputs"]),
                item["is_split"],
            )
            for item in plain["stages"]
        )
        lists = {
            "inputs": tensors(plain["inputs"]),
            "rank_of_stage": tuple(plain["rank_of_stage"]),
            "rows": tuple(map(tuple, plain["rows"])),
            "trained": tuple((name, tuple(holders)) for name, holders in plain["trained"]),
        }
        return PipelineSpec(**{**plain, "stages": stages, **lists})

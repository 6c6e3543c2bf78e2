"""Specs of an exported pipeline: plain values, for plain PyTorch.

Plain PyTorch, too: a saved program has copies of this file and of the others that the runner
imports, which then find each other by their bare names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a micro-batch; the name of its dtype has no "torch."."""

    shape: tuple[int, ...]
    dtype: str
    has_gradient: bool = False

    def example(self, device: str = "meta") -> torch.Tensor:
        """Returns zeros with this spec, by default without memory."""
        dtype = getattr(torch, self.dtype)
        return torch.zeros(self.shape, dtype=dtype, device=device, requires_grad=self.has_gradient)


def input_name(number: int | str) -> str:
    """Returns the keyword by which a stage takes an input of the model."""
    return f"input_{number}"


@dataclass(frozen=True)
class StageSpec:
    """What goes into a stage and comes out.

    Attributes:
        received: from the stage before.
        returned: to the stage behind; of the last one, all results.
        inputs: of the model, by number.
        is_split: whether PyTorch may compute gradients of weights apart from those of inputs.
    """

    received: tuple[TensorSpec, ...]
    returned: tuple[TensorSpec, ...]
    inputs: tuple[int, ...]
    is_split: bool = True


@dataclass(frozen=True)
class PipelineSpec:
    """What all stages together are.

    Attributes:
        stages: each stage.
        inputs: of the model, one micro-batch of each.
        num_micro_batches: of one step.
        kind: of the schedule; one of `pipeline_schedules.KINDS`.
        is_training: whether the last stage returns a loss.
        is_mean: whether gradients are averaged over the micro-batches, not added.
        rank_of_stage: where the schedule says it; empty for rank 0, 1, 2, ... and again from 0.
        rows: what each rank runs in order, where the schedule is a table of that kind.
        trained: of each parameter with a gradient, in the model's order, its name and the stages
            that have it; the first one is the owner.
        num_replicas: pipelines that train one model, each on its part of the rows.
        max_grad_norm: limit of the norm of all gradients; infinity for none.
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
        """Returns the spec that `dataclasses.asdict` and JSON made `plain` of."""

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

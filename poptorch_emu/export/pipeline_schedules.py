"""Schedules of exported pipelines: PyTorch's own, by name, and tables that PyTorch executes.

The file is plain PyTorch, because a saved program contains a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.nn.parallel import DistributedDataParallel

from poptorch_emu.export.pipeline_spec import PipelineSpec, input_name

# Inputs are cut into micro-batches along their first dimension.
_CHUNKS = TensorChunkSpec(0)  # type: ignore[no-untyped-call]

_OF_ONE_STAGE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
_OF_SEVERAL = {
    "interleaved": ScheduleInterleaved1F1B,
    "looped_bfs": ScheduleLoopedBFS,
    "zero_bubble_h1": ScheduleInterleavedZeroBubble,
    "zero_bubble_v": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}
# Schedules whose stages go from the first rank to the last and back, two on each rank.
_OF_A_V = ("zero_bubble_v", "dualpipe_v")
# Schedules that compute gradients of weights separately from those of inputs.
_SPLIT = ("zero_bubble_h1", "zero_bubble_v", "dualpipe_v")
# Kind of a schedule whose actions are the rows of the spec.
_TABLE = "table"

KINDS = (*_OF_ONE_STAGE, *_OF_SEVERAL, _TABLE, "sequential")


def ranks_of_stages(spec: PipelineSpec, num_ranks: int, kind: str | None = None) -> list[int]:
    """Returns the rank of each stage.

    Args:
        spec: spec of the pipeline.
        num_ranks: number of processes that share the pipeline.
        kind: kind of the schedule; by default that of the spec.

    Raises:
        ValueError: these processes cannot share the stages.
    """
    count, wanted = len(spec.stages), kind or spec.kind
    if count % num_ranks:
        raise ValueError(
            f"{count} stages cannot be shared by {num_ranks} processes. Start as many processes as "
            "there are stages, or a divisor of it."
        )
    if wanted in _OF_A_V or wanted == _TABLE:
        expected = len(spec.rows) if wanted == _TABLE else count // 2
        if num_ranks != expected:
            raise ValueError(
                f"The schedule {wanted!r} of {count} stages runs in {expected} processes, but "
                f"there are {num_ranks}. Start {expected}, or choose another kind of schedule."
            )
    if wanted == _TABLE:
        return list(spec.rank_of_stage)
    ranks = list(range(num_ranks))
    is_v = wanted in _OF_A_V
    turns = ((ranks[::-1] if is_v and turn % 2 else ranks) for turn in range(count // num_ranks))
    return [rank for turn in turns for rank in turn]


class OneByOne:
    """A schedule of one micro-batch at a time: forward through all stages, then backward."""

    def __init__(self, stages: Sequence[PipelineStage], spec: PipelineSpec) -> None:
        """Stores the stages of this process."""
        self._stages = stages
        self._spec = spec
        self._inner = _pipelined(stages, spec, "1f1b" if len(stages) == 1 else "interleaved", 1)

    def step(self, *, target: Any = None, losses: list[Any] | None = None, **inputs: Any) -> Any:
        """Runs a batch as `step` of PyTorch's schedules does, but returns no outputs."""
        count = self._spec.num_micro_batches
        of_all: list[Any] = []
        for index in range(count):
            found: list[Any] = []
            self._inner.step(
                target=None if target is None else target[index : index + 1],
                losses=found,
                return_outputs=False,
                **{key: _micro_batch(value, index, count) for key, value in inputs.items()},
            )
            of_all += found
        if losses is not None:
            losses[:] = of_all
        if self._spec.is_mean:
            for stage in self._stages:
                stage.scale_grads(count)


def make_schedule(
    stages: Sequence[PipelineStage], spec: PipelineSpec, kind: str | None = None
) -> Any:
    """Returns the schedule of this process's stages.

    Args:
        stages: all stages of this process, in order.
        spec: spec of the pipeline.
        kind: one of `KINDS`; by default that of the spec, or "interleaved" for several stages.

    Raises:
        ValueError: the kind is unknown or does not fit the stages, or a stage is missing.
    """
    wanted = kind or spec.kind
    if wanted not in KINDS:
        raise ValueError(f"Unknown kind of schedule: {wanted!r}. Choose one of {list(KINDS)}.")
    _check_own_stages(stages, spec, wanted)
    _check_wrapped(stages, spec, wanted)
    if not spec.is_training:
        wanted = "gpipe"  # Without backward, all kinds run the same actions.
    elif kind is None and wanted == "1f1b" and len(stages) > 1:
        wanted = "interleaved"
    if wanted == "sequential":
        return OneByOne(stages, spec)
    return _pipelined(stages, spec, wanted, spec.num_micro_batches)


def _check_own_stages(stages: Sequence[PipelineStage], spec: PipelineSpec, kind: str) -> None:
    if not stages:
        raise ValueError(
            "A schedule needs the stages of this process, but the list of stages is empty. Pass "
            "stage(index, device) for each index that own_stages() returns."
        )
    first = stages[0]
    ranks = ranks_of_stages(spec, first.group_size, kind)
    expected = [stage for stage, rank in enumerate(ranks) if rank == first.group_rank]
    given = [stage.stage_index for stage in stages]
    if given != expected:
        raise ValueError(
            f"Rank {first.group_rank} of {first.group_size} runs the stages {expected}, but was "
            f"given {given}. Make them all, and pass them in order."
        )


def _check_wrapped(stages: Sequence[PipelineStage], spec: PipelineSpec, kind: str) -> None:
    """Refuses wrapped stages whose gradients would silently not be summed over replicas.

    `DistributedDataParallel` sums gradients that a whole backward computes, but misses gradients
    of weights that are computed separately.
    """
    is_split = kind in _SPLIT or (kind == _TABLE and any("I" in a for r in spec.rows for a in r))
    if is_split and any(isinstance(stage.submod, DistributedDataParallel) for stage in stages):
        raise ValueError(
            f"The schedule {kind!r} computes gradients of weights apart, which "
            "DistributedDataParallel does not sum. Compile the model with "
            "options.replicationFactor(n) and leave the stages as they are: a step then sums over "
            "replicas itself. Or choose a schedule of whole backwards, such as '1f1b'."
        )


def _pipelined(
    stages: Sequence[PipelineStage], spec: PipelineSpec, kind: str, num_micro_batches: int
) -> Any:
    """Returns a schedule of PyTorch."""
    if not spec.is_training and len(stages) > 1:
        raise ValueError(
            f"PyTorch infers with one stage in each process, but this one has {len(stages)}. Start "
            f"{len(spec.stages)} processes."
        )
    if kind in _OF_ONE_STAGE and len(stages) > 1:
        raise ValueError(
            f"The schedule {kind!r} runs one stage in each process, but this one has "
            f"{len(stages)}. Choose 'interleaved' or 'sequential', or start more processes."
        )
    if kind == "1f1b" and num_micro_batches < stages[0].num_stages:
        kind = "gpipe"  # PyTorch's 1F1B needs at least one micro-batch for each stage.
    specs = {
        input_name(number): _CHUNKS if spec.inputs[number].shape else _Replicate()
        for number in read_by(stages, spec)
    }
    arguments: dict[str, Any] = {
        "n_microbatches": num_micro_batches,
        "loss_fn": _first if spec.is_training else None,
        "kwargs_chunk_spec": specs or None,
        "scale_grads": spec.is_mean and num_micro_batches == spec.num_micro_batches,
    }
    if kind == _TABLE:
        return _by_rows(stages, spec, arguments)
    if kind in _OF_ONE_STAGE:
        return _OF_ONE_STAGE[kind](stages[0], **arguments)
    if kind == "looped_bfs":
        specs = arguments.pop("kwargs_chunk_spec")  # The class does not accept this argument.
        schedule = ScheduleLoopedBFS(list(stages), **arguments)
        schedule._kwargs_chunk_spec = specs
        return schedule
    return _OF_SEVERAL[kind](list(stages), **arguments)


def _by_rows(stages: Sequence[PipelineStage], spec: PipelineSpec, arguments: dict[str, Any]) -> Any:
    """Returns a schedule of PyTorch that executes the rows of the spec."""
    schedule = _PipelineScheduleRuntime(list(stages), **arguments)  # type: ignore[no-untyped-call]
    schedule.pipeline_order = {
        rank: list(map(_Action.from_str, row)) for rank, row in enumerate(spec.rows)
    }
    schedule._prepare_schedule_with_comms(schedule.pipeline_order)
    return schedule


def read_by(stages: Sequence[PipelineStage], spec: PipelineSpec) -> list[int]:
    """Returns the indices of the inputs that these stages read."""
    return sorted({number for s in stages for number in spec.stages[s.stage_index].inputs})


def _first(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Returns the loss, the only result of the last stage."""
    loss: torch.Tensor = output[0]
    return loss


def _micro_batch(value: torch.Tensor, index: int, count: int) -> torch.Tensor:
    return value.chunk(count)[index] if value.dim() else value

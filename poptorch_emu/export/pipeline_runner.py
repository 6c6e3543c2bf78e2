"""Runs exported stages on `torch.distributed.pipelining`.

This file is plain PyTorch and imports nothing else: a saved program has a copy of it, named
`run.py`, which `torchrun --nproc-per-node N run.py batches.pt` starts. `batches.pt` is a list that
`torch.save` wrote; each item holds the input tensors of one update.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.export.passes import move_to_device_pass

# How an input is cut into micro-batches: along its first dimension.
_CHUNKS = TensorChunkSpec(0)  # type: ignore[no-untyped-call]

KINDS = ("1f1b", "gpipe", "interleaved", "sequential")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a micro-batch; the name of its dtype has no "torch."."""

    shape: tuple[int, ...]
    dtype: str
    has_gradient: bool = False

    def example(self) -> torch.Tensor:
        """Returns a tensor with this spec, without memory."""
        dtype = getattr(torch, self.dtype)
        return torch.empty(self.shape, dtype=dtype, device="meta", requires_grad=self.has_gradient)


@dataclass(frozen=True)
class StageSpec:
    """What goes into a stage and comes out: from its neighbours, and inputs by number."""

    received: tuple[TensorSpec, ...]
    returned: tuple[TensorSpec, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class PipelineSpec:
    """What all stages together are.

    Attributes:
        stages: each stage.
        inputs: of the model, one micro-batch of each.
        num_micro_batches: of one step.
        kind: of the schedule; one of `KINDS`.
        is_training: whether the last stage returns a loss.
        is_mean: whether gradients are averaged over the micro-batches, not added.
    """

    stages: tuple[StageSpec, ...]
    inputs: tuple[TensorSpec, ...]
    num_micro_batches: int
    kind: str
    is_training: bool
    is_mean: bool

    @staticmethod
    def of(plain: Mapping[str, Any]) -> PipelineSpec:
        """Returns the spec that `dataclasses.asdict` and JSON made `plain` of."""

        def tensors(items: Any) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(tuple(item["shape"]), item["dtype"], item["has_gradient"])
                for item in items
            )

        stages = tuple(
            StageSpec(tensors(item["received"]), tensors(item["returned"]), tuple(item["inputs"]))
            for item in plain["stages"]
        )
        rest = {key: value for key, value in plain.items() if key not in ("stages", "inputs")}
        return PipelineSpec(stages=stages, inputs=tensors(plain["inputs"]), **rest)


class OneByOne:
    """A schedule of one micro-batch at a time: forward through all stages, then backward."""

    def __init__(self, stages: Sequence[PipelineStage], spec: PipelineSpec) -> None:
        """Takes the stages of this process."""
        self._stages = stages
        self._spec = spec
        self._inner = _pipelined(stages, spec, "1f1b" if len(stages) == 1 else "interleaved", 1)

    def step(self, *, target: Any = None, losses: list[Any] | None = None, **inputs: Any) -> Any:
        """Does what `step` of PyTorch's schedules does; outputs are not returned."""
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


def make_stage(
    module: torch.nn.Module,
    index: int,
    spec: PipelineSpec,
    device: torch.device | str,
    group: dist.ProcessGroup | None = None,
) -> PipelineStage:
    """Returns the stage that runs `module`, with the specs of all that is sent and received.

    Raises:
        ValueError: the processes are too many, or the stage belongs to another one of them.
    """
    num_stages, num_ranks = len(spec.stages), dist.get_world_size(group)
    if num_stages % num_ranks:
        raise ValueError(
            f"{num_stages} stages cannot be shared by {num_ranks} processes. Start as many "
            "processes as there are stages, or a divisor of it."
        )
    if index % num_ranks != dist.get_rank(group):
        raise ValueError(
            f"Stage {index} belongs to rank {index % num_ranks} of {num_ranks}, but this is rank "
            f"{dist.get_rank(group)}. Each rank makes the stages rank, rank + {num_ranks}, ..."
        )
    own = spec.stages[index]
    return PipelineStage(
        module,
        index,
        num_stages,
        torch.device(device),
        input_args=tuple(tensor.example() for tensor in own.received),
        output_args=tuple(tensor.example() for tensor in own.returned),
        group=group,
    )


def make_schedule(
    stages: Sequence[PipelineStage], spec: PipelineSpec, kind: str | None = None
) -> Any:
    """Returns the schedule of this process's stages.

    Args:
        stages: all of this process, in order.
        spec: of the pipeline.
        kind: one of `KINDS`; by default that of the spec, or "interleaved" for several stages.

    Raises:
        ValueError: there is no such kind, it does not fit, or a stage is missing.
    """
    _check_own_stages(stages)
    wanted = kind or spec.kind
    if wanted not in KINDS:
        raise ValueError(f"Unknown kind of schedule: {wanted!r}. Choose one of {list(KINDS)}.")
    if not spec.is_training:
        wanted = "gpipe"  # Without backward all kinds are this one.
    elif kind is None and wanted == "1f1b" and len(stages) > 1:
        wanted = "interleaved"
    if wanted == "sequential":
        return OneByOne(stages, spec)
    return _pipelined(stages, spec, wanted, spec.num_micro_batches)


def _check_own_stages(stages: Sequence[PipelineStage]) -> None:
    if not stages:
        raise ValueError("A schedule needs the stages of this process, but was given none.")
    first = stages[0]
    expected = list(range(first.group_rank, first.num_stages, first.group_size))
    given = [stage.stage_index for stage in stages]
    if given != expected:
        raise ValueError(
            f"Rank {first.group_rank} of {first.group_size} runs the stages {expected}, but was "
            f"given {given}. Make them all, and pass them in order."
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
    if kind != "interleaved" and len(stages) > 1:
        raise ValueError(
            f"The schedule {kind!r} runs one stage in each process, but this one has "
            f"{len(stages)}. Choose 'interleaved' or 'sequential', or start more processes."
        )
    if kind == "1f1b" and num_micro_batches < stages[0].num_stages:
        kind = "gpipe"  # PyTorch's 1F1B wants as many micro-batches as stages; values are equal.
    specs = {
        _name(number): _CHUNKS if spec.inputs[number].shape else _Replicate()
        for number in _read_by(stages, spec)
    }
    arguments: dict[str, Any] = {
        "n_microbatches": num_micro_batches,
        "loss_fn": _first if spec.is_training else None,
        "kwargs_chunk_spec": specs or None,
        "scale_grads": spec.is_mean and num_micro_batches == spec.num_micro_batches,
    }
    if kind == "interleaved":
        return ScheduleInterleaved1F1B(list(stages), **arguments)
    return (ScheduleGPipe if kind == "gpipe" else Schedule1F1B)(stages[0], **arguments)


def run_step(
    schedule: Any,
    stages: Sequence[PipelineStage],
    spec: PipelineSpec,
    inputs: Sequence[torch.Tensor],
) -> Any:
    """Runs forward, and backward in training, of a whole batch.

    Args:
        schedule: of `make_schedule`.
        stages: of this process; each input goes only to processes that read it.
        spec: of the pipeline.
        inputs: the tensors of a call in order, each for all micro-batches.

    Returns:
        On the rank of the last stage the losses, one a micro-batch, or the outputs; else `None`.

    Raises:
        ValueError: an input does not have the rows of all micro-batches.
    """
    check_inputs(spec, inputs)
    device = stages[0].device
    named = {
        _name(number): inputs[number].to(
            device=device, dtype=getattr(torch, spec.inputs[number].dtype)
        )
        for number in _read_by(stages, spec)
    }
    is_last = any(stage.is_last for stage in stages)
    if not spec.is_training:
        with torch.no_grad():
            return schedule.step(**named)
    losses: list[torch.Tensor] = []
    # PyTorch wants a target of the loss function; ours is computed in the last stage.
    target = torch.zeros(spec.num_micro_batches, device=device) if is_last else None
    options = {} if isinstance(schedule, OneByOne) else {"return_outputs": False}
    schedule.step(target=target, losses=losses, **options, **named)
    return [loss.detach() for loss in losses] if is_last else None


def check_inputs(spec: PipelineSpec, inputs: Sequence[torch.Tensor]) -> None:
    """Raises a ValueError for inputs that cannot be cut into the spec's micro-batches."""
    if len(inputs) != len(spec.inputs):
        raise ValueError(
            f"A step takes {len(spec.inputs)} input tensors, but {len(inputs)} were given. Pass "
            "those of a call of the model, in order."
        )
    for number, (value, micro) in enumerate(zip(inputs, spec.inputs, strict=True)):
        expected = micro.shape
        if expected:
            expected = (expected[0] * spec.num_micro_batches, *expected[1:])
        if tuple(value.shape) != expected:
            raise ValueError(
                f"Input {number} has the shape {tuple(value.shape)}, but {expected} was expected: "
                f"{spec.num_micro_batches} micro-batches of {micro.shape}. Give a whole batch of "
                "the size that the model was compiled for."
            )


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter],
    spec: Mapping[str, Any],
    states: Mapping[str, Mapping[str, torch.Tensor]],
) -> torch.optim.Optimizer:
    """Returns an optimiser of `torch.optim` for the parameters of a module.

    Args:
        parameters: by name.
        spec: "class", and "groups" with "names" and "values".
        states: of parameters, by their names.
    """
    groups: list[dict[str, Any]] = []
    for group in spec["groups"]:
        members = [parameters[name] for name in group["names"] if name in parameters]
        if members:
            groups.append({"params": members, **group["values"]})
    # An optimiser needs a parameter, and a stage may have none.
    nothing = {"params": [torch.nn.Parameter(torch.empty(0))]}
    kind: Any = getattr(torch.optim, spec["class"])
    optimizer: torch.optim.Optimizer = kind(groups or [nothing], lr=0.0)
    for name, state in states.items():
        if name in parameters:
            optimizer.state[parameters[name]] = {
                key: value.clone()
                if key == "step"
                else value.to(parameters[name].device, copy=True)
                for key, value in state.items()
            }
    return optimizer


def _read_by(stages: Sequence[PipelineStage], spec: PipelineSpec) -> list[int]:
    """Returns the numbers of the inputs that these stages read."""
    return sorted({number for s in stages for number in spec.stages[s.stage_index].inputs})


def _name(number: int) -> str:
    return f"input_{number}"


def _first(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Returns the loss, which is all that the last stage returns."""
    loss: torch.Tensor = output[0]
    return loss


def _micro_batch(value: torch.Tensor, index: int, count: int) -> torch.Tensor:
    return value.chunk(count)[index] if value.dim() else value


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the stages of the folder of this file on batches, and saves their weights."""
    parser = argparse.ArgumentParser(description="Trains a saved pipeline; start it by torchrun.")
    parser.add_argument("batches", type=Path, help="a list of tuples of tensors, by torch.save")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--kind", choices=KINDS, help="of the schedule")
    options = parser.parse_args(arguments)
    folder = Path(__file__).parent
    dist.init_process_group("gloo" if options.device == "cpu" else "nccl")
    try:
        train(folder, options.batches, _own_device(options.device), options.kind)
    finally:
        dist.destroy_process_group()


def train(folder: Path, batches: Path, device: torch.device, kind: str | None) -> None:
    """Runs one update for each batch; the rank of the last stage prints the losses."""
    spec = PipelineSpec.of(json.loads((folder / "pipeline.json").read_text()))
    modules = {
        index: _load_stage(folder, index, device)
        for index in range(dist.get_rank(), len(spec.stages), dist.get_world_size())
    }
    stages = [make_stage(module, index, spec, device) for index, module in modules.items()]
    schedule = make_schedule(stages, spec, kind)
    optimizer = json.loads((folder / "optimizer.json").read_text())
    states = torch.load(folder / "optimizer_state.pt")
    optimizers = [
        make_optimizer(dict(module.named_parameters()), optimizer, states)
        for module in modules.values()
    ]
    for batch in torch.load(batches):
        for one in optimizers:
            one.zero_grad()
        losses = run_step(schedule, stages, spec, batch)
        for one in optimizers:
            one.step()
        if losses is not None:
            print(*(loss.item() for loss in losses), flush=True)
    for index, module in modules.items():
        torch.save(module.state_dict(), folder / f"trained_{index}.pt")


def _load_stage(folder: Path, index: int, device: torch.device) -> torch.nn.Module:
    program = torch.export.load(folder / f"stage_{index}.pt2")
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    return program.module()


def _own_device(kind: str) -> torch.device:
    """Returns this rank's device: of several GPUs each rank takes its own."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, dist.get_rank() % torch.cuda.device_count())


if __name__ == "__main__":
    main()

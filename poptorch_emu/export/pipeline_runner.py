"""Runs exported stages on `torch.distributed.pipelining`.

This file and the two that it imports are plain PyTorch: a saved program has a copy of it, named
`run.py`, which `torchrun --nproc-per-node N run.py batches.pt` starts. `batches.pt` is a list that
`torch.save` wrote; each item holds the input tensors of one update.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.export.passes import move_to_device_pass

from poptorch_emu.export.pipeline_schedules import (
    KINDS,
    OneByOne,
    input_name,
    make_schedule,
    ranks_of_stages,
    read_by,
)
from poptorch_emu.export.pipeline_spec import PipelineSpec, StageSpec, TensorSpec

__all__ = ["PipelineSpec", "StageSpec", "TensorSpec", "make_schedule", "make_stage", "run_step"]


def own_stages(
    spec: PipelineSpec, group: dist.ProcessGroup | None = None, kind: str | None = None
) -> list[int]:
    """Returns the numbers of the stages that belong to this process, in order.

    Raises:
        ValueError: the processes cannot share the stages.
    """
    ranks = ranks_of_stages(spec, dist.get_world_size(group), kind)
    return [stage for stage, rank in enumerate(ranks) if rank == dist.get_rank(group)]


def make_stage(
    module: torch.nn.Module,
    index: int,
    spec: PipelineSpec,
    device: torch.device | str,
    group: dist.ProcessGroup | None = None,
    kind: str | None = None,
) -> PipelineStage:
    """Returns the stage that runs `module`, with the specs of all that is sent and received.

    Args:
        module: its forward.
        index: its number.
        spec: of the pipeline.
        device: where it runs.
        group: of the processes.
        kind: of the schedule; by default that of the spec.

    Raises:
        ValueError: the processes are too many, or the stage belongs to another one of them.
    """
    num_stages, num_ranks = len(spec.stages), dist.get_world_size(group)
    own = ranks_of_stages(spec, num_ranks, kind)[index]
    if own != dist.get_rank(group):
        raise ValueError(
            f"Stage {index} belongs to rank {own} of {num_ranks}, but this is rank "
            f"{dist.get_rank(group)}. Each rank makes its own stages: see own_stages()."
        )
    ends = spec.stages[index]
    return PipelineStage(
        module,
        index,
        num_stages,
        torch.device(device),
        input_args=tuple(tensor.example() for tensor in ends.received),
        output_args=tuple(tensor.example() for tensor in ends.returned),
        group=group,
    )


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
        input_name(number): inputs[number].to(
            device=device, dtype=getattr(torch, spec.inputs[number].dtype)
        )
        for number in read_by(stages, spec)
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
    modules = {index: _load_stage(folder, index, device) for index in own_stages(spec, kind=kind)}
    stages = [
        make_stage(module, index, spec, device, kind=kind) for index, module in modules.items()
    ]
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

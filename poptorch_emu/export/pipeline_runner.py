"""Runs exported stages on `torch.distributed.pipelining`.

This file and those that it imports are plain PyTorch, because a saved program contains copies of
them. This file is its `run.py`, which `torchrun --nproc-per-node N run.py batches.pt` starts.
`batches.pt` is a list that `torch.save` wrote; each item holds the input tensors of one update.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.export.passes import move_to_device_pass

from poptorch_emu.export.formula_optimizer import FormulaOptimizer, config_of
from poptorch_emu.export.pipeline_gradients import (
    finish_gradients,
    pipeline_group,
    replica_of,
)
from poptorch_emu.export.pipeline_schedules import (
    KINDS,
    OneByOne,
    make_schedule,
    ranks_of_stages,
    read_by,
)
from poptorch_emu.export.pipeline_spec import PipelineSpec, input_name

__all__ = ["main", "make_optimizer", "make_schedule", "make_stage", "own_stages", "run_step"]


def own_stages(
    spec: PipelineSpec, group: dist.ProcessGroup | None = None, kind: str | None = None
) -> list[int]:
    """Returns the indices of the stages of this process, in order.

    Raises:
        ValueError: the processes cannot share the stages.
    """
    group = pipeline_group(spec, group)
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
    """Returns the stage that runs `module`, with specs of all tensors that it exchanges.

    Args:
        module: forward of the stage.
        index: index of the stage.
        spec: spec of the pipeline.
        device: device of the stage.
        group: processes of the pipeline.
        kind: kind of the schedule; by default that of the spec.

    Raises:
        ValueError: there are too many processes, or the stage belongs to another process.
    """
    group = pipeline_group(spec, group)
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
        # With a builder, PyTorch runs the whole backward at once; the built function then does
        # nothing.
        dw_builder=None if ends.is_split else _build_nothing,
    )


def _build_nothing() -> Callable[[], None]:
    return lambda: None


def run_step(
    schedule: Any,
    stages: Sequence[PipelineStage],
    spec: PipelineSpec,
    inputs: Sequence[torch.Tensor],
    kind: str | None = None,
) -> Any:
    """Runs forward and, in training, backward of a whole batch.

    Args:
        schedule: schedule from `make_schedule`.
        stages: stages of this process, which receive the inputs that they read.
        spec: spec of the pipeline.
        inputs: tensors of a call in order, each for all micro-batches of all replicas.
        kind: kind of the schedule; by default that of the spec.

    Returns:
        On the rank of the last stage, the losses of its replica, one for each micro-batch, or the
        outputs; `None` on other ranks.

    Raises:
        ValueError: an input does not have the rows of all micro-batches.
    """
    check_inputs(spec, inputs)
    device, replica = stages[0].device, replica_of(spec)
    named = {
        input_name(number): _rows_of(inputs[number], replica, spec).to(
            device=device, dtype=getattr(torch, spec.inputs[number].dtype)
        )
        for number in read_by(stages, spec)
    }
    is_last = any(stage.is_last for stage in stages)
    if not spec.is_training:
        with torch.no_grad():
            return schedule.step(**named)
    losses: list[torch.Tensor] = []
    # A placeholder: PyTorch requires a target, but the last stage already computes the loss.
    target = torch.zeros(spec.num_micro_batches, device=device) if is_last else None
    options = {} if isinstance(schedule, OneByOne) else {"return_outputs": False}
    schedule.step(target=target, losses=losses, **options, **named)
    ranks = ranks_of_stages(spec, stages[0].group_size, kind)
    finish_gradients(stages, spec, ranks)
    return [loss.detach() for loss in losses] if is_last else None


def check_inputs(spec: PipelineSpec, inputs: Sequence[torch.Tensor]) -> None:
    """Raises `ValueError` for inputs that cannot be cut into the spec's micro-batches."""
    if len(inputs) != len(spec.inputs):
        raise ValueError(
            f"A step takes {len(spec.inputs)} input tensors, but {len(inputs)} were given. Pass "
            "those of a call of the model, in order."
        )
    for number, (value, micro) in enumerate(zip(inputs, spec.inputs, strict=True)):
        expected = micro.shape
        if expected:
            rows = expected[0] * spec.num_micro_batches * spec.num_replicas
            expected = (rows, *expected[1:])
        if tuple(value.shape) != expected:
            raise ValueError(
                f"Input {number} has the shape {tuple(value.shape)}, but {expected} was expected: "
                f"{spec.num_micro_batches} micro-batches of {micro.shape} for each of "
                f"{spec.num_replicas} replicas. Give a whole batch of the size that the model was "
                "compiled for."
            )


def _rows_of(value: torch.Tensor, replica: int, spec: PipelineSpec) -> torch.Tensor:
    """Returns the rows of one replica; replicas take micro-batches in turn."""
    if spec.num_replicas == 1 or not value.dim():
        return value
    shape = (spec.num_micro_batches, spec.num_replicas, -1, *value.shape[1:])
    return value.reshape(shape)[:, replica].flatten(0, 1)


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter],
    spec: Mapping[str, Any],
    states: Mapping[str, Mapping[str, torch.Tensor]],
) -> torch.optim.Optimizer:
    """Returns an optimiser for the parameters of a module.

    Args:
        parameters: parameters by name.
        spec: "groups" with "names" and "values"; "class" of `torch.optim`, or "formulas".
        states: state tensors of each parameter by its name.

    Raises:
        ValueError: the spec does not name a parameter.
    """
    known = {name for group in spec["groups"] for name in group["names"]}
    unknown = [name for name, one in parameters.items() if one.requires_grad and name not in known]
    if unknown:
        raise ValueError(
            f"The optimizer has no group that contains parameter '{unknown[0]}'. Pass the module "
            "that stage_module() made; compile it in place, by module.compile(), so that its names "
            "stay."
        )
    groups: list[dict[str, Any]] = []
    for group in spec["groups"]:
        members = [parameters[name] for name in group["names"] if name in parameters]
        if members:
            groups.append({"params": members, **group["values"]})
    # A placeholder for stages without parameters, because an optimiser requires one.
    nothing = {"params": [torch.nn.Parameter(torch.empty(0))]}
    kind: Any
    if "formulas" in spec:
        kind = partial(FormulaOptimizer, config=config_of(spec["formulas"]))
    else:
        kind = getattr(torch.optim, spec["class"])
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
    """Trains the stages in this file's folder on batches, and saves their weights."""
    parser = argparse.ArgumentParser(
        description="Trains a saved pipeline. Start this program with torchrun."
    )
    parser.add_argument(
        "batches",
        type=Path,
        help="file that torch.save wrote: a list of batches, each of them a tuple of tensors",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="device that runs the stages: cpu or cuda (default: %(default)s)",
    )
    parser.add_argument(
        "--kind", choices=KINDS, help="kind of schedule (default: that of the exported pipeline)"
    )
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
        index: _load_stage(folder, index, spec, device) for index in own_stages(spec, kind=kind)
    }
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
        losses = run_step(schedule, stages, spec, batch, kind)
        for one in optimizers:
            one.step()
        if losses is not None:
            # One write for the whole line, because replicas share the output.
            sys.stdout.write(" ".join(str(loss.item()) for loss in losses) + "\n")
            sys.stdout.flush()
    if replica_of(spec):
        return
    for index, module in modules.items():
        torch.save(module.state_dict(), folder / f"trained_{index}.pt")


def _load_stage(
    folder: Path, index: int, spec: PipelineSpec, device: torch.device
) -> torch.nn.Module:
    program = torch.export.load(folder / f"stage_{index}.pt2")
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    module = program.module()
    own = set(map(input_name, spec.stages[index].inputs))

    def ignore_others(_: Any, received: Any, inputs: dict[str, Any]) -> Any:
        return received, {name: value for name, value in inputs.items() if name in own}

    # All stages of a process receive the inputs that any of them reads.
    module.register_forward_pre_hook(ignore_others, with_kwargs=True, prepend=True)
    return module


def _own_device(kind: str) -> torch.device:
    """Returns this rank's device; with several GPUs each rank uses another one."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, dist.get_rank() % torch.cuda.device_count())


if __name__ == "__main__":
    main()

"""Sums and clips gradients between the last backward of a step and the optimisers.

Each process has gradients of its own stages and rows. This module sums them over the replicas and
over the stages that share a weight, and clips them by the norm of all gradients. The file is plain
PyTorch, because a saved program contains a copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from poptorch_emu.export.pipeline_spec import PipelineSpec

# Names of a mesh's dimensions: the pipeline, and the rank within it.
_REPLICA, _RANK = "replica", "rank"

# Meshes by world group and number of replicas, so that each group of processes is created once.
_meshes: WeakKeyDictionary[Any, dict[int, DeviceMesh]] = WeakKeyDictionary()


def pipeline_group(spec: PipelineSpec, group: dist.ProcessGroup | None) -> Any:
    """Returns the processes of one pipeline: `group`, or those of this process's replica.

    Raises:
        ValueError: `group` is given for several replicas, or replicas have unequal numbers of
            processes.
    """
    if spec.num_replicas == 1:
        return group
    if group is not None:
        raise ValueError(
            f"A group was given, but the {spec.num_replicas} replicas of this pipeline have "
            "groups of their own. Leave `group` out, and start the same number of processes for "
            "each replica."
        )
    return _mesh(spec)[_RANK].get_group()


def replica_group(spec: PipelineSpec) -> Any:
    """Returns the processes that run the same stages of all replicas.

    Raises:
        ValueError: there is one replica, or the replicas do not divide the processes.
    """
    if spec.num_replicas == 1:
        raise ValueError(
            "This pipeline has one replica. Compile it with options.replicationFactor(n), or make "
            "the groups yourself and pass them to stage() and own_stages()."
        )
    return _mesh(spec)[_REPLICA].get_group()


def replica_of(spec: PipelineSpec) -> int:
    """Returns the index of the replica that contains this process."""
    return 0 if spec.num_replicas == 1 else dist.get_rank(replica_group(spec))


def finish_gradients(
    stages: Sequence[PipelineStage], spec: PipelineSpec, ranks: Sequence[int]
) -> None:
    """Replaces the gradients of a process's stages by those of the whole model.

    Args:
        stages: stages of this process, after the last backward of a step.
        spec: spec of the pipeline.
        ranks: rank of each stage in the pipeline.
    """
    own = {stage.stage_index: dict(unwrapped(stage.submod).named_parameters()) for stage in stages}
    group = stages[0].group
    if spec.num_replicas > 1:
        _sum_over_replicas(stages, spec)
    for name, holders in spec.trained:
        places = [(ranks[holder], own.get(holder, {}).get(name)) for holder in holders]
        if len(holders) > 1 and any(parameter is not None for _, parameter in places):
            _sum_over_stages(places, group)
    if math.isfinite(spec.max_grad_norm):
        _clip(own, spec, group, stages[0].device)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module inside `DistributedDataParallel`, with the user's names, or `module`."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _mesh(spec: PipelineSpec) -> DeviceMesh:
    world, replicas = dist.get_world_size(), spec.num_replicas
    if world % replicas:
        raise ValueError(
            f"{world} processes do not divide into {replicas} replicas. Start a multiple of "
            f"{replicas}."
        )
    meshes = _meshes.setdefault(dist.group.WORLD, {})
    if replicas not in meshes:
        kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        shape, names = (replicas, world // replicas), (_REPLICA, _RANK)
        meshes[replicas] = init_device_mesh(kind, shape, mesh_dim_names=names)
    return meshes[replicas]


def _sum_over_replicas(stages: Sequence[PipelineStage], spec: PipelineSpec) -> None:
    """Sums or averages gradients; `DistributedDataParallel` has already averaged those it wraps."""
    group, count = replica_group(spec), spec.num_replicas
    for stage in stages:
        is_averaged = isinstance(stage.submod, DistributedDataParallel)
        for parameter in stage.submod.parameters():
            if not parameter.requires_grad:
                continue
            gradient = _gradient(parameter)
            if not is_averaged:
                dist.all_reduce(gradient, group=group)
            if is_averaged and not spec.is_mean:
                gradient.mul_(count)
            elif spec.is_mean and not is_averaged:
                gradient.div_(count)


def _sum_over_stages(
    places: Sequence[tuple[int, torch.nn.Parameter | None]], group: dist.ProcessGroup | None
) -> None:
    """Sums the gradients of all copies of a weight; the owner adds them up in order.

    Args:
        places: rank of each stage that has the weight, and its copy if it is here. The first
            place is the owner's.
        group: processes of the pipeline.
    """
    owner, here = places[0][0], dist.get_rank(group)
    copies = [parameter for _, parameter in places if parameter is not None]
    total = _gradient(copies[0]).clone(memory_format=torch.contiguous_format)
    if here == owner:
        for rank, parameter in places[1:]:
            if parameter is None:
                received = torch.empty_like(total)
                dist.recv(received, group=group, group_src=rank)
                total += received
            else:
                total += _gradient(parameter)
        for rank in sorted({rank for rank, _ in places} - {here}):
            dist.send(total, group=group, group_dst=rank)
    else:
        for parameter in copies:
            dist.send(_gradient(parameter).contiguous(), group=group, group_dst=owner)
        dist.recv(total, group=group, group_src=owner)
    for parameter in copies:
        _gradient(parameter).copy_(total)


def _clip(
    own: Mapping[int, Mapping[str, torch.nn.Parameter]],
    spec: PipelineSpec,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> None:
    """Scales all gradients so that their norm is at most the spec's limit.

    The norms of parameters are in the model's order in each process, so that the total norm has
    the same bits wherever the stages are.
    """
    norms = torch.zeros(len(spec.trained), device=device)
    for index, (name, holders) in enumerate(spec.trained):
        if name in own.get(holders[0], {}):
            gradient = _gradient(own[holders[0]][name])
            norms[index] = torch.linalg.vector_norm(gradient, dtype=torch.float32)
    dist.all_reduce(norms, group=group)
    scale = torch.clamp(spec.max_grad_norm / torch.linalg.vector_norm(norms), max=1.0)
    for parameters in own.values():
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the gradient; creates zeros if backward left none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad

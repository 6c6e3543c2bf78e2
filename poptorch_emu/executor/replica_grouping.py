"""`executor.<parameter>.replicaGrouping`: parameters with a value for each group of replicas."""

from __future__ import annotations

from typing import Any

import torch

from poptorch_emu.config import WeightGroups, group_of_replica
from poptorch_emu.enums import CommGroupType, VariableRetrievalMode
from poptorch_emu.errors import make_error

# Arguments of `replicaGrouping`: type and size of the groups, and the values that the host reads.
Triple = tuple[CommGroupType, int, VariableRetrievalMode]

_METHOD = "replicaGrouping"


class ReplicaGroupings:
    """Groupings that the user has requested from an executor, by the parameter's name."""

    def __init__(self) -> None:
        """Starts without groupings."""
        self.triples: dict[str, Triple] = {}

    def offer(self, name: str, value: Any) -> None:
        """Adds the method `replicaGrouping` to a parameter until it is withdrawn."""
        if not isinstance(value, torch.nn.Parameter):
            return

        def replicaGrouping(
            comm_group_type: CommGroupType,
            shards: int,
            variable_retrieval_mode: VariableRetrievalMode,
        ) -> None:
            """Gives each group of replicas its own value of this parameter (exact).

            On the host the parameter has an additional first dimension for the groups; `forward`
            sees one value. The change applies at the next compilation.

            Args:
                comm_group_type: kind of the groups.
                shards: number of replicas in a group.
                variable_retrieval_mode: whether the host reads one value per group or per replica.
            """
            self.triples[name] = (comm_group_type, shards, variable_retrieval_mode)

        object.__getattribute__(value, "__dict__")[_METHOD] = replicaGrouping

    def withdraw(self, model: torch.nn.Module) -> None:
        """Removes the method from the parameters of `model`."""
        for value in model.parameters(recurse=False):
            object.__getattribute__(value, "__dict__").pop(_METHOD, None)

    def weight_groups(self, model: torch.nn.Module, num_replicas: int) -> tuple[WeightGroups, ...]:
        """Returns the groups for a compilation of `model`.

        A parameter with several names is stored under its first name.

        Raises:
            Error: a parameter is a scalar or does not have one value per group, or the groups do
                not divide the replicas.
        """
        first_name = {id(value): name for name, value in model.named_parameters()}
        result = []
        for name, (group_type, size, mode) in self.triples.items():
            _check_size(name, group_type, size, num_replicas)
            value = getattr(model, name)
            reads_all = mode == VariableRetrievalMode.AllReplicas
            groups = WeightGroups(first_name[id(value)], CommGroupType(group_type), size, reads_all)
            _check_shape(groups, value, num_replicas)
            result.append(groups)
        return tuple(result)


def _check_size(name: str, group_type: CommGroupType, size: int, num_replicas: int) -> None:
    is_sized = group_type in (CommGroupType.Consecutive, CommGroupType.Orthogonal)
    if is_sized and (size < 1 or num_replicas % size != 0):
        raise make_error(
            f"replicaGrouping of '{name}': groups of {size} replicas do not divide "
            f"replicationFactor({num_replicas}). Give a factor of it."
        )


def _check_shape(groups: WeightGroups, value: torch.Tensor, num_replicas: int) -> None:
    if value.dim() == 0:
        raise make_error(
            f"Scalars cannot be passed as per-replica weight tensor values ('{groups.name}'): the "
            "first dimension counts the groups of replicas. Give the parameter one."
        )
    of_replica = group_of_replica(groups.group_type, groups.group_size, num_replicas)
    num_groups = 1 + max(of_replica)
    allowed = {num_groups, num_replicas} if groups.reads_all else {num_groups}
    if len(value) not in allowed:
        raise make_error(
            f"'{groups.name}' has shape {tuple(value.shape)}, but its first dimension must be "
            f"{num_groups}, one value for each group of replicas. Stack the values of the groups."
        )
